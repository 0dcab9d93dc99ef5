"""Embedding: rows of a table by their numbers, one by one or in bags."""

from __future__ import annotations

from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import empty
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import float32

__all__ = ["Embedding", "EmbeddingBag"]


def _row_of_padding(padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise AssertionError("padding_idx must be within num_embeddings")
    return padding_idx % rows


def _table(rows: int, width: int, weight: Tensor | None, dtype: Any, trained: bool = True) -> Parameter:
    """The table given, or one that is not filled yet."""
    if weight is None:
        return Parameter(empty((rows, width), dtype=dtype or float32), trained)
    if list(weight.shape) != [rows, width]:
        raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
    return Parameter(weight, trained)


def _draw(table: Tensor, padding_idx: int | None) -> None:
    init.normal_(table)
    if padding_idx is not None:
        with no_grad():
            table[padding_idx] = 0


def _changed_options(module: Module, defaults: dict[str, Any]) -> str:
    """The options of a module that differ from their defaults, as its repr prints them."""
    return "".join(f", {k}={getattr(module, k)}" for k, v in defaults.items() if getattr(module, k) != v)


class Embedding(Module):
    """A table of vectors, from which rows are taken by their numbers. See `torch.nn.Embedding`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = _row_of_padding(padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.weight = _table(num_embeddings, embedding_dim, _weight, dtype, not _freeze)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table again; the row of ``padding_idx`` becomes zeros."""
        _draw(self.weight, self.padding_idx)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        optional = {"padding_idx": None, "max_norm": None, "norm_type": 2, "scale_grad_by_freq": False}
        text = f"{self.num_embeddings}, {self.embedding_dim}{_changed_options(self, optional)}"
        return text + (", sparse=True" if self.sparse else "")

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """An embedding with this table, which is not trained unless ``freeze`` is false."""
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, width = embeddings.shape
        return cls(
            rows,
            width,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight=embeddings,
            _freeze=freeze,
        )


class EmbeddingBag(Module):
    """The sum, mean or maximum of the rows of each bag of row numbers. See `torch.nn.EmbeddingBag`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.padding_idx = _row_of_padding(padding_idx, num_embeddings)
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        self.weight = _table(num_embeddings, embedding_dim, _weight, dtype)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table again; the row of ``padding_idx`` becomes zeros."""
        _draw(self.weight, self.padding_idx)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        optional = _changed_options(self, {"max_norm": None, "norm_type": 2, "scale_grad_by_freq": False})
        padding = _changed_options(self, {"padding_idx": None})
        return f"{self.num_embeddings}, {self.embedding_dim}{optional}, mode={self.mode!r}{padding}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """Bags of this table, which is not trained unless ``freeze`` is false."""
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, width = embeddings.shape
        options = max_norm, norm_type, scale_grad_by_freq, mode, sparse
        bag = cls(rows, width, *options, embeddings, include_last_offset, padding_idx)
        bag.weight.requires_grad = not freeze
        return bag
