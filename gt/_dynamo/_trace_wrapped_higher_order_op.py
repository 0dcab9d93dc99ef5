"""The one name of this file of torch that libraries import."""

from contextlib import nullcontext


class TransformGetItemToIndex(nullcontext[None]):
    """A context without an effect: indices that are tensors need no transformation."""
