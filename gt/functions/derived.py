"""The functions that are just an op, made from the op's entry. `derived.pyi`, written from it too, declares them."""

from gt.functions import derive

FUNCTIONS = derive.functions()
globals().update(FUNCTIONS)
#: those that torch has at its top
__all__ = sorted(derive.published(FUNCTIONS, ""))
