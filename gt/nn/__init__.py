"""``gt.nn``: torch's modules, with its names, signatures and state."""

from gt.nn import functional, init, utils
from gt.nn.activation import *
from gt.nn.attention import MultiheadAttention
from gt.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from gt.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d
from gt.nn.embedding import Embedding
from gt.nn.linear import Bilinear, Flatten, Identity, Linear, Unflatten
from gt.nn.losses import *
from gt.nn.module import Module
from gt.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from gt.nn.parameter import Parameter
from gt.nn.pooling import *
from gt.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell
from gt.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)


def __getattr__(name: str) -> object:
    raise AttributeError(f"gt.nn.{name} is not there yet, if torch has it (torch.nn.{name})")
