"""The ops of networks: importing this module declares them all."""

from gt.ops import (
    nn_attention,
    nn_channels,
    nn_conv,
    nn_dropout,
    nn_gate,
    nn_linear,
    nn_loss,
    nn_norm,
    nn_pool,
    nn_resample,
)

FAMILIES = (
    nn_attention,
    nn_channels,
    nn_conv,
    nn_dropout,
    nn_gate,
    nn_linear,
    nn_loss,
    nn_norm,
    nn_pool,
    nn_resample,
)
