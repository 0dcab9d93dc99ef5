"""``gt.optim``: torch's optimizers, each step of a parameter group one instruction, in place on the workers."""

from gt.missing import absent as _absent
from gt.optim import lr_scheduler
from gt.optim.adafactor import Adafactor
from gt.optim.adam import Adam, AdamW
from gt.optim.optimizer import Optimizer
from gt.optim.others import Adagrad, Lion, RMSprop
from gt.optim.sgd import SGD

__all__ = ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "lr_scheduler"]
__getattr__ = _absent("optim")
