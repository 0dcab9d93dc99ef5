"""``gt.special``: special functions, as in `torch.special`. They are in `gt.functions.special`."""

from gt.functions.special import *
from gt.functions.special import __all__ as __all__
from gt.missing import absent

absent("special")
