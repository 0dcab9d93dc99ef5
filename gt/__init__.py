"""GT: eager, PyTorch-like Python in one process, run on one GPU, on eight, or on a shared cluster.

Each module lists its public names in ``__all__``; this file only collects them.
"""

import sys as _sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gt.launch.collector import collector_paused as _collector_paused

with _collector_paused():  # a tenth of the time of `import gt`
    from gt.functions import methods as _methods
from gt import autograd, interop, linalg, signal
from gt import errors as _errors
from gt import types as _types
from gt import version as _version
from gt.client.compile import decorator as _compile
from gt.client.compile.decorator import *
from gt.client.grad.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from gt.client.grad.backward import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.grad.checkpoint import checkpoint
from gt.client.signals import config as _config
from gt.client.signals.config import *
from gt.client.stream import connect as _connect
from gt.client.stream import step as _step
from gt.client.stream.connect import *
from gt.client.stream.step import *
from gt.client.stream.tracebacks import install as _install_tracebacks
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
from gt.functions.spectral import complex as _complex
from gt.functions.spectral import stft as _stft
from gt.functions.spectral import windows as _spectral_windows
from gt.functions.spectral.complex import *
from gt.functions.spectral.stft import *
from gt.functions.spectral.windows import *
from gt.functions.views import *
from gt.functions.windows import *
from gt.missing import MissingModules as _MissingModules
from gt.missing import refuse as _refuse
from gt.types import *
from gt.types import bool_ as bool

__version__ = _version.VERSION
#: imported because this attaches the methods of a tensor
_attached = _methods

device, dtype = _Device, DType
double, float, half = float64, float32, float16
cdouble, cfloat, chalf = complex128, complex64, complex32
long, int, short = int64, int32, int16
newaxis = None

__all__ = [
    "Tensor",
    "__version__",
    "bool",
    "cdouble",
    "cfloat",
    "chalf",
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
__all__ += ["is_anomaly_check_nan_enabled", "is_anomaly_enabled"]
__all__ += _compile.__all__
__all__ += _config.__all__
__all__ += _connect.__all__
__all__ += _errors.__all__
__all__ += _step.__all__
__all__ += _printing.__all__
__all__ += _random.__all__
__all__ += _types.__all__
__all__ += _activations.__all__
__all__ += _complex.__all__
__all__ += _spectral_windows.__all__
__all__ += _stft.__all__
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

_install_tracebacks()
if _MissingModules not in _sys.meta_path:
    _sys.meta_path.append(_MissingModules)

#: Modules that are imported at their first use.
_LAZY = (
    "accelerator", "amp", "ao", "backends", "compiler", "cuda", "debug", "distributed", "distributions", "fft", "func",
    "fx", "hub", "jit", "library", "multiprocessing", "nn", "optim", "pipeline", "random", "serialization", "sparse",
    "special", "utils",
)  # fmt: skip
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
#: Torch's global switches.
_SETTINGS = (
    "_assert are_deterministic_algorithms_enabled get_default_device get_deterministic_debug_mode "
    "get_float32_matmul_precision get_num_interop_threads get_num_threads "
    "is_deterministic_algorithms_warn_only_enabled is_warn_always_enabled set_default_device set_default_tensor_type "
    "set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal set_num_interop_threads "
    "set_num_threads set_warn_always use_deterministic_algorithms"
)
#: Functions of the array API standard that torch does not have.
_ARRAY_API = (
    "astype bitwise_invert broadcast_arrays expand_dims matrix_transpose permute_dims unique_all unique_counts "
    "unique_inverse unique_values vecdot"
)
#: Torch's oldest constructors.
_TENSOR_CLASSES = (
    "BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor "
    "ShortTensor"
)
#: name -> the module that has it, imported at the first use of the name
_LAZY_NAMES = dict.fromkeys(_FUNCTIONAL.split(), "nn.functional") | dict.fromkeys(_TOP.split(), "nn._top")
_LAZY_NAMES |= dict.fromkeys(_SETTINGS.split(), "backends.settings") | dict.fromkeys(_ARRAY_API.split(), "array_api")
_LAZY_NAMES |= dict.fromkeys(_TENSOR_CLASSES.split(), "functions.legacy")
_LAZY_NAMES |= {
    "autocast": "amp",
    "is_autocast_enabled": "amp",
    "save": "saving",
    "load": "saving",
    "recovery": "client.stream.recovery",
    "rebalance": "client.tensor.rebalancing",
    "snapshot": "saving.forks",
    "fork": "saving.forks",
    "sparse_coo_tensor": "sparse.create",
    "sparse_csr_tensor": "sparse.create",
    "spmm": "sparse.products",
    "to_device": "data",
    "vmap": "func",
}

if TYPE_CHECKING:
    from gt import accelerator as accelerator
    from gt import amp as amp
    from gt import ao as ao
    from gt import backends as backends
    from gt import compiler as compiler
    from gt import cuda as cuda
    from gt import debug as debug
    from gt import distributed as distributed
    from gt import distributions as distributions
    from gt import fft as fft
    from gt import func as func
    from gt import fx as fx
    from gt import hub as hub
    from gt import jit as jit
    from gt import library as library
    from gt import multiprocessing as multiprocessing
    from gt import nn as nn
    from gt import optim as optim
    from gt import pipeline as pipeline
    from gt import random as random
    from gt import serialization as serialization
    from gt import sparse as sparse
    from gt import special as special
    from gt import utils as utils
    from gt.amp import autocast as autocast
    from gt.amp import is_autocast_enabled as is_autocast_enabled
    from gt.array_api import astype as astype
    from gt.array_api import bitwise_invert as bitwise_invert
    from gt.array_api import broadcast_arrays as broadcast_arrays
    from gt.array_api import expand_dims as expand_dims
    from gt.array_api import matrix_transpose as matrix_transpose
    from gt.array_api import permute_dims as permute_dims
    from gt.array_api import unique_all as unique_all
    from gt.array_api import unique_counts as unique_counts
    from gt.array_api import unique_inverse as unique_inverse
    from gt.array_api import unique_values as unique_values
    from gt.array_api import vecdot as vecdot
    from gt.backends.settings import _assert as _assert
    from gt.backends.settings import are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled
    from gt.backends.settings import get_default_device as get_default_device
    from gt.backends.settings import get_deterministic_debug_mode as get_deterministic_debug_mode
    from gt.backends.settings import get_float32_matmul_precision as get_float32_matmul_precision
    from gt.backends.settings import get_num_interop_threads as get_num_interop_threads
    from gt.backends.settings import get_num_threads as get_num_threads
    from gt.backends.settings import (
        is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled,
    )
    from gt.backends.settings import is_warn_always_enabled as is_warn_always_enabled
    from gt.backends.settings import set_default_device as set_default_device
    from gt.backends.settings import set_default_tensor_type as set_default_tensor_type
    from gt.backends.settings import set_deterministic_debug_mode as set_deterministic_debug_mode
    from gt.backends.settings import set_float32_matmul_precision as set_float32_matmul_precision
    from gt.backends.settings import set_flush_denormal as set_flush_denormal
    from gt.backends.settings import set_num_interop_threads as set_num_interop_threads
    from gt.backends.settings import set_num_threads as set_num_threads
    from gt.backends.settings import set_warn_always as set_warn_always
    from gt.backends.settings import use_deterministic_algorithms as use_deterministic_algorithms
    from gt.client.stream.recovery import recovery as recovery
    from gt.client.tensor.rebalancing import rebalance as rebalance
    from gt.data import to_device as to_device
    from gt.func import vmap as vmap
    from gt.functions.legacy import BFloat16Tensor as BFloat16Tensor
    from gt.functions.legacy import BoolTensor as BoolTensor
    from gt.functions.legacy import ByteTensor as ByteTensor
    from gt.functions.legacy import CharTensor as CharTensor
    from gt.functions.legacy import DoubleTensor as DoubleTensor
    from gt.functions.legacy import FloatTensor as FloatTensor
    from gt.functions.legacy import HalfTensor as HalfTensor
    from gt.functions.legacy import IntTensor as IntTensor
    from gt.functions.legacy import LongTensor as LongTensor
    from gt.functions.legacy import ShortTensor as ShortTensor
    from gt.nn._top import alpha_dropout as alpha_dropout
    from gt.nn._top import batch_norm as batch_norm
    from gt.nn._top import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
    from gt.nn._top import cdist as cdist
    from gt.nn._top import cosine_embedding_loss as cosine_embedding_loss
    from gt.nn._top import dropout as dropout
    from gt.nn._top import embedding as embedding
    from gt.nn._top import feature_alpha_dropout as feature_alpha_dropout
    from gt.nn._top import feature_dropout as feature_dropout
    from gt.nn._top import hinge_embedding_loss as hinge_embedding_loss
    from gt.nn._top import instance_norm as instance_norm
    from gt.nn._top import kl_div as kl_div
    from gt.nn._top import margin_ranking_loss as margin_ranking_loss
    from gt.nn._top import poisson_nll_loss as poisson_nll_loss
    from gt.nn._top import triplet_margin_loss as triplet_margin_loss
    from gt.nn.functional import adaptive_avg_pool1d as adaptive_avg_pool1d
    from gt.nn.functional import avg_pool1d as avg_pool1d
    from gt.nn.functional import bilinear as bilinear
    from gt.nn.functional import channel_shuffle as channel_shuffle
    from gt.nn.functional import conv1d as conv1d
    from gt.nn.functional import conv2d as conv2d
    from gt.nn.functional import conv3d as conv3d
    from gt.nn.functional import conv_transpose1d as conv_transpose1d
    from gt.nn.functional import conv_transpose2d as conv_transpose2d
    from gt.nn.functional import conv_transpose3d as conv_transpose3d
    from gt.nn.functional import cosine_similarity as cosine_similarity
    from gt.nn.functional import group_norm as group_norm
    from gt.nn.functional import layer_norm as layer_norm
    from gt.nn.functional import max_pool1d as max_pool1d
    from gt.nn.functional import max_pool2d as max_pool2d
    from gt.nn.functional import max_pool3d as max_pool3d
    from gt.nn.functional import pairwise_distance as pairwise_distance
    from gt.nn.functional import pixel_shuffle as pixel_shuffle
    from gt.nn.functional import pixel_unshuffle as pixel_unshuffle
    from gt.nn.functional import rms_norm as rms_norm
    from gt.saving import load as load
    from gt.saving import save as save
    from gt.saving.forks import fork as fork
    from gt.saving.forks import snapshot as snapshot
    from gt.sparse.create import sparse_coo_tensor as sparse_coo_tensor
    from gt.sparse.create import sparse_csr_tensor as sparse_csr_tensor
    from gt.sparse.products import spmm as spmm


interop.install()


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_NAMES})


if not TYPE_CHECKING:  # or every name would exist for a type checker

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return import_module(f"gt.{name}")
        if name in _LAZY_NAMES:
            return getattr(import_module(f"gt.{_LAZY_NAMES[name]}"), name)
        return _refuse("", name)
