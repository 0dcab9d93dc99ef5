"""``gt.nn``: torch's modules, with its names, signatures and state.

Each file lists its public names in ``__all__``; this file only collects them. It may import `gt.functions` and below.
"""

from gt.missing import absent as _absent
from gt.nn import activation as _activation
from gt.nn import attention, functional, init, modules, parallel, utils
from gt.nn import containers as _containers
from gt.nn import conv as _conv
from gt.nn import dropout as _dropout
from gt.nn import embedding as _embedding
from gt.nn import linear as _linear
from gt.nn import losses as _losses
from gt.nn import module as _module
from gt.nn import multihead_attention as _multihead_attention
from gt.nn import norm as _norm
from gt.nn import parameter as _parameter
from gt.nn import pooling as _pooling
from gt.nn import recurrent as _recurrent
from gt.nn import transformer as _transformer
from gt.nn.activation import *
from gt.nn.containers import *
from gt.nn.conv import *
from gt.nn.dropout import *
from gt.nn.embedding import *
from gt.nn.linear import *
from gt.nn.losses import *
from gt.nn.module import *
from gt.nn.multihead_attention import *
from gt.nn.norm import *
from gt.nn.parallel import DataParallel
from gt.nn.parameter import *
from gt.nn.pooling import *
from gt.nn.recurrent import *
from gt.nn.transformer import *

__all__ = ["DataParallel", "attention", "functional", "init", "modules", "parallel", "utils"]
__all__ += _activation.__all__
__all__ += _containers.__all__
__all__ += _conv.__all__
__all__ += _dropout.__all__
__all__ += _embedding.__all__
__all__ += _linear.__all__
__all__ += _losses.__all__
__all__ += _module.__all__
__all__ += _multihead_attention.__all__
__all__ += _norm.__all__
__all__ += _parameter.__all__
__all__ += _pooling.__all__
__all__ += _recurrent.__all__
__all__ += _transformer.__all__

_absent("nn")
