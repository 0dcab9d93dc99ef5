"""``gt.onnx``: only errors, because GT exports nothing. Scripts that import torch.onnx and do not use it run."""

from gt.missing import absent as _absent

_absent("onnx")
