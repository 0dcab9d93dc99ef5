"""GT: eager, PyTorch-like Python in one process, run on one GPU, on eight, or on a shared cluster.

Each module says in its own ``__all__`` what of it is public; here it is only gathered.
"""

from importlib import import_module
from typing import Any

from gt import autograd, debug, linalg
from gt import errors as _errors
from gt import types as _types
from gt import version as _version
from gt.client import activations as _activations
from gt.client import compile as _compile
from gt.client import composed as _composed
from gt.client import config as _config
from gt.client import connect as _connect
from gt.client import creation as _creation
from gt.client import drawing as _drawing
from gt.client import einsum as _einsum
from gt.client import facts as _facts
from gt.client import finding as _finding
from gt.client import functions as _functions
from gt.client import hot as _hot
from gt.client import joining as _joining
from gt.client import methods as _methods
from gt.client import picking as _picking
from gt.client import pointwise as _pointwise
from gt.client import printing as _printing
from gt.client import products as _products
from gt.client import quantiles as _quantiles
from gt.client import random as _random
from gt.client import reductions as _reductions
from gt.client import signal
from gt.client import solving as _solving
from gt.client import views as _views
from gt.client.activations import *
from gt.client.arguments import Device as _Device
from gt.client.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.checkpoint import checkpoint
from gt.client.compile import *
from gt.client.composed import *
from gt.client.config import *
from gt.client.connect import *
from gt.client.creation import *
from gt.client.drawing import *
from gt.client.einsum import *
from gt.client.facts import *
from gt.client.finding import *
from gt.client.foreign import told as _told
from gt.client.functions import *
from gt.client.hot import *
from gt.client.joining import *
from gt.client.picking import *
from gt.client.pointwise import *
from gt.client.printing import *
from gt.client.products import *
from gt.client.quantiles import *
from gt.client.random import *
from gt.client.reductions import *
from gt.client.solving import *
from gt.client.tensor import Tensor
from gt.client.views import *
from gt.errors import *
from gt.missing import missing as _missing
from gt.types import *
from gt.types import bool_ as bool

__version__ = _version.VERSION
#: importing it gives a tensor its methods
_attached = _methods

device, dtype = _Device, DType
double, float, half = float64, float32, float16
long, int, short = int64, int32, int16
newaxis = None

__all__ = [
    "Tensor",
    "__version__",
    "bool",
    "debug",
    "device",
    "double",
    "dtype",
    "float",
    "half",
    "int",
    "linalg",
    "long",
    "short",
    "signal",
]
__all__ += ["autograd", "checkpoint", "enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]
__all__ += _activations.__all__
__all__ += _composed.__all__
__all__ += _compile.__all__
__all__ += _config.__all__
__all__ += _connect.__all__
__all__ += _creation.__all__
__all__ += _drawing.__all__
__all__ += _errors.__all__
__all__ += _facts.__all__
__all__ += _functions.__all__
__all__ += _hot.__all__
__all__ += _solving.__all__
__all__ += _products.__all__
__all__ += _picking.__all__
__all__ += _joining.__all__
__all__ += _finding.__all__
__all__ += _einsum.__all__
__all__ += _pointwise.__all__
__all__ += _printing.__all__
__all__ += _quantiles.__all__
__all__ += _random.__all__
__all__ += _reductions.__all__
__all__ += _types.__all__
__all__ += _views.__all__

# as methods they always have a tensor
for _name in [name for module in (_views, _joining, _creation, _functions, _drawing) for name in module.__all__]:
    if type(_function := globals()[_name]) is type(_told):
        globals()[_name] = _told(_function)

#: modules that are loaded when they are first asked for, and names out of such modules
_LAZY = ("amp", "cuda", "nn", "optim", "special", "utils")
_FUNCTIONAL = (
    "adaptive_avg_pool1d avg_pool1d bilinear channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d cosine_similarity group_norm layer_norm max_pool1d max_pool2d max_pool3d pairwise_distance "
    "pixel_shuffle pixel_unshuffle rms_norm"
)
#: the same, with other arguments
_TOP = (
    "alpha_dropout batch_norm binary_cross_entropy_with_logits cdist cosine_embedding_loss dropout embedding "
    "feature_alpha_dropout feature_dropout hinge_embedding_loss instance_norm kl_div margin_ranking_loss "
    "poisson_nll_loss triplet_margin_loss"
)
_LAZY_NAMES = dict.fromkeys(_FUNCTIONAL.split(), "nn.functional") | dict.fromkeys(_TOP.split(), "nn._top")
_LAZY_NAMES |= {
    "autocast": "amp",
    "is_autocast_enabled": "amp",
    "save": "saving",
    "load": "saving",
    "to_device": "data",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"gt.{name}")
    if name in _LAZY_NAMES:
        return getattr(import_module(f"gt.{_LAZY_NAMES[name]}"), name)
    raise _missing("", name)
