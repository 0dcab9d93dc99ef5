"""The functions that are just an op, generated from the op's entry. docs/make_declarations.py writes `derived.pyi`."""

from gt.functions import derive

FUNCTIONS = derive.functions()
globals().update(FUNCTIONS)
#: those that torch has at its top
__all__ = sorted(derive.published(FUNCTIONS, ""))
