"""``gt.linalg``: matrices, as in `torch.linalg`. The functions are in `gt.functions.linalg`."""

from gt.functions.linalg import *
from gt.functions.linalg import __all__ as __all__
from gt.missing import absent

absent("linalg")
