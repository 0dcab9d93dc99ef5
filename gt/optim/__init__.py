"""``gt.optim``: torch's optimizers. A step of a parameter group is one instruction, run in place on the workers.

It may import `gt.functions` and below.
"""

from gt.missing import absent as _absent
from gt.optim import lr_scheduler, swa_utils
from gt.optim.adafactor import Adafactor
from gt.optim.adam import Adam, AdamW
from gt.optim.adam_variants import Adamax, NAdam, RAdam, SparseAdam
from gt.optim.lbfgs import LBFGS
from gt.optim.optimizer import Optimizer
from gt.optim.others import Adadelta, Adagrad, Lion, RMSprop, Rprop
from gt.optim.sgd import ASGD, SGD

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "NAdam", "Optimizer",
    "RAdam", "RMSprop", "Rprop", "SparseAdam", "lr_scheduler", "swa_utils",
]  # fmt: skip
_absent("optim")
