"""GT: eager, PyTorch-like Python in one process, run on one GPU, on eight, or on a shared cluster.

Each module lists its public names in ``__all__``; this file only collects them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gt.launch.collector import collector_paused as _collector_paused

with _collector_paused():  # a tenth of the time of `import gt`
    from gt.functions import methods as _methods
from gt import autograd, linalg, signal
from gt import errors as _errors
from gt import types as _types
from gt import version as _version
from gt.client.compile import decorator as _compile
from gt.client.compile.decorator import *
from gt.client.grad.backward import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.grad.checkpoint import checkpoint
from gt.client.signals import config as _config
from gt.client.signals.config import *
from gt.client.stream import connect as _connect
from gt.client.stream import step as _step
from gt.client.stream.connect import *
from gt.client.stream.step import *
from gt.client.tensor import printing as _printing
from gt.client.tensor import random_state as _random
from gt.client.tensor.arguments import Device as _Device
from gt.client.tensor.foreign import report_non_tensors as _report_non_tensors
from gt.client.tensor.printing import *
from gt.client.tensor.random_state import *
from gt.client.tensor.tensor import Tensor
from gt.errors import *
from gt.functions import activations as _activations
from gt.functions import composite as _composite
from gt.functions import creation as _creation
from gt.functions import derived as _derived
from gt.functions import draw as _draw
from gt.functions import einsum as _einsum
from gt.functions import factorizations as _factorizations
from gt.functions import indexing as _indexing
from gt.functions import joining as _joining
from gt.functions import matmul as _matmul
from gt.functions import norm as _norm
from gt.functions import order as _order
from gt.functions import pointwise as _pointwise
from gt.functions import reduce as _reduce
from gt.functions import scan as _scan
from gt.functions import scatter as _scatter
from gt.functions import sort as _sort
from gt.functions import views as _views
from gt.functions import windows as _windows
from gt.functions.activations import *
from gt.functions.composite import *
from gt.functions.creation import *
from gt.functions.derived import *
from gt.functions.draw import *
from gt.functions.einsum import *
from gt.functions.factorizations import *
from gt.functions.indexing import *
from gt.functions.joining import *
from gt.functions.matmul import *
from gt.functions.norm import *
from gt.functions.order import *
from gt.functions.pointwise import *
from gt.functions.reduce import *
from gt.functions.scan import *
from gt.functions.scatter import *
from gt.functions.sort import *
from gt.functions.views import *
from gt.functions.windows import *
from gt.missing import missing as _missing
from gt.types import *
from gt.types import bool_ as bool

__version__ = _version.VERSION
#: imported because this attaches the methods of a tensor
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
__all__ += _compile.__all__
__all__ += _config.__all__
__all__ += _connect.__all__
__all__ += _errors.__all__
__all__ += _step.__all__
__all__ += _printing.__all__
__all__ += _random.__all__
__all__ += _types.__all__
__all__ += _activations.__all__
__all__ += _composite.__all__
__all__ += _creation.__all__
__all__ += _derived.__all__
__all__ += _draw.__all__
__all__ += _einsum.__all__
__all__ += _factorizations.__all__
__all__ += _joining.__all__
__all__ += _indexing.__all__
__all__ += _matmul.__all__
__all__ += _norm.__all__
__all__ += _order.__all__
__all__ += _pointwise.__all__
__all__ += _reduce.__all__
__all__ += _scan.__all__
__all__ += _scatter.__all__
__all__ += _sort.__all__
__all__ += _views.__all__
__all__ += _windows.__all__

# As methods these functions always get a tensor, so only the public functions check their first argument.
_checked: dict[Any, Any] = {}
for _name in [name for module in (_views, _joining, _creation, _sort, _draw) for name in module.__all__]:
    if type(_function := globals()[_name]) is type(_report_non_tensors):
        _checked[_function] = globals()[_name] = _checked.get(_function) or _report_non_tensors(_function, __name__)

#: Modules that are imported at their first use.
_LAZY = ("amp", "cuda", "debug", "nn", "optim", "pipeline", "special", "utils")
#: Functions of `gt.nn.functional` that torch has at its top level too.
_FUNCTIONAL = (
    "adaptive_avg_pool1d avg_pool1d bilinear channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d cosine_similarity group_norm layer_norm max_pool1d max_pool2d max_pool3d pairwise_distance "
    "pixel_shuffle pixel_unshuffle rms_norm"
)
#: Functions that torch has at its top level with other arguments than in `torch.nn.functional`.
_TOP = (
    "alpha_dropout batch_norm binary_cross_entropy_with_logits cdist cosine_embedding_loss dropout embedding "
    "feature_alpha_dropout feature_dropout hinge_embedding_loss instance_norm kl_div margin_ranking_loss "
    "poisson_nll_loss triplet_margin_loss"
)
#: name -> the module that has it, imported at the first use of the name
_LAZY_NAMES = dict.fromkeys(_FUNCTIONAL.split(), "nn.functional") | dict.fromkeys(_TOP.split(), "nn._top")
_LAZY_NAMES |= {
    "autocast": "amp",
    "is_autocast_enabled": "amp",
    "save": "saving",
    "load": "saving",
    "to_device": "data",
}

if TYPE_CHECKING:
    from gt import amp as amp
    from gt import cuda as cuda
    from gt import debug as debug
    from gt import nn as nn
    from gt import optim as optim
    from gt import pipeline as pipeline
    from gt import special as special
    from gt import utils as utils
    from gt.amp import autocast as autocast
    from gt.amp import is_autocast_enabled as is_autocast_enabled
    from gt.data import to_device as to_device
    from gt.saving import load as load
    from gt.saving import save as save


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_NAMES})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"gt.{name}")
    if name in _LAZY_NAMES:
        return getattr(import_module(f"gt.{_LAZY_NAMES[name]}"), name)
    raise _missing("", name)
