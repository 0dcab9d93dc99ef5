"""``gt.nn.attention.flex_attention``: attention whose scores a function changes.

The function gets the scores and their positions as whole tensors, which broadcast, where torch's gets single numbers.
So it must be made of operations on elements and of indexing, as torch asks for too. Nothing is skipped by blocks: all
scores are computed, and memory grows with the product of the lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import Any, NamedTuple

from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.functions.creation import arange, zeros
from gt.functions.matmul import matmul
from gt.functions.pointwise import where
from gt.functions.views import broadcast_to
from gt.missing import absent as _absent
from gt.nn import functional as F
from gt.types import Size, bool_

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention",
    "noop_mask", "or_masks",
]  # fmt: skip
_absent("nn.attention.flex_attention")

#: batch, head, position of the query, position of the key -> whether the query attends to the key
MaskFunction = Callable[[Any, Any, Any, Any], Any]

#: Torch's default for the size of blocks, which libraries import; it has no effect.
_DEFAULT_SPARSE_BLOCK_SIZE = 128


class AuxRequest(NamedTuple):
    """What `flex_attention` returns beside its result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What an `AuxRequest` asked for; the rest is None."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


class BlockMask:
    """Which queries attend to which keys, from `create_block_mask`."""

    def __init__(self, mask: Tensor, mask_mod: MaskFunction) -> None:
        self.mask, self.mask_mod = mask, mask_mod

    @property
    def shape(self) -> Size:
        """Batches, heads, queries and keys."""
        return self.mask.shape

    @property
    def seq_lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.shape[2], self.shape[3]


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """A mask function that hides nothing."""
    return batch.new_ones((), dtype=bool_)


def and_masks(*mask_mods: MaskFunction) -> MaskFunction:
    """A mask function that hides what any of these hides."""

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        result = noop_mask(b, h, q, kv)
        for mask_mod in mask_mods:
            result = result & mask_mod(b, h, q, kv)
        return result

    return mask


def or_masks(*mask_mods: MaskFunction) -> MaskFunction:
    """A mask function that hides what all of these hide."""

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        result = b.new_zeros((), dtype=bool_)
        for mask_mod in mask_mods:
            result = result | mask_mod(b, h, q, kv)
        return result

    return mask


def _positions(shape: tuple[int, ...]) -> list[Tensor]:
    """Batch, head, query and key of each score, in shapes that broadcast."""
    return [arange(n).reshape([-1 if d == dim else 1 for d in range(4)]) for dim, n in enumerate(shape)]


def create_mask(mod_fn: MaskFunction, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None) -> Any:  # noqa: N803
    """A tensor of bools: whether each query attends to each key."""
    shape = B or 1, H or 1, Q_LEN, KV_LEN
    return broadcast_to(mod_fn(*_positions(shape)), shape)


def create_block_mask(
    mask_mod: MaskFunction,
    B: int | None,  # noqa: N803
    H: int | None,  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: Any = None,
    BLOCK_SIZE: Any = 128,  # noqa: N803
    _compile: bool = False,
) -> BlockMask:
    """The mask that a function describes. The device, the size of blocks and compilation are ignored."""
    return BlockMask(create_mask(mask_mod, B, H, Q_LEN, KV_LEN), mask_mod)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Attention with scores that ``score_mod`` changes and ``block_mask`` hides. See `torch.nn.attention`."""
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads:
        if not enable_gqa or heads % key_heads:
            raise ConfigError(f"flex_attention: {heads} heads of queries and {key_heads} of keys need enable_gqa=True")
        key, value = (x.repeat_interleave(heads // key_heads, 1) for x in (key, value))
    mask = None if block_mask is None else block_mask.mask
    if score_mod is None and not return_lse and return_aux is None:
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    scores = matmul(query, key.transpose(-2, -1)) * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if score_mod is not None:
        scores = score_mod(scores, *_positions(scores.shape))
    if mask is not None:
        scores = where(mask, scores, -inf)
    lse = scores.logsumexp(-1)
    hidden = (lse == -inf).unsqueeze(-1)  # a query that attends to no key: its result is 0
    result = matmul(where(hidden, zeros(()), scores.softmax(-1)), value)
    if return_aux is not None:
        wanted = return_aux.lse, return_aux.max_scores
        return result, AuxOutput(lse if wanted[0] else None, scores.amax(-1) if wanted[1] else None)
    return (result, lse) if return_lse else result
