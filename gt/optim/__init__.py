"""``gt.optim``: torch's optimizers. A step of a parameter group is one instruction, run in place on the workers.

It may import `gt.functions` and below.
"""

from gt.missing import absent as _absent
from gt.optim import lr_scheduler
from gt.optim.adafactor import Adafactor
from gt.optim.adam import Adam, AdamW
from gt.optim.optimizer import Optimizer
from gt.optim.others import Adagrad, Lion, RMSprop
from gt.optim.sgd import SGD

__all__ = ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "lr_scheduler"]
_absent("optim")
