"""The families of ops, as `top`, traces and pictures group them: each file of ops belongs to one."""

from __future__ import annotations

from gt.ops.op import Op

#: family -> the files whose ops belong to it; ops of all other files are elementwise
_FILES = {
    "matmul": "matmul linear product linalg matrix_functions",
    "attention": "attention",
    "convolution": "conv pool resample windows",
    "recurrent": "recurrent",
    "normalization": "channel_norm layer_norm rms_norm norm",
    "reduction": "reduce scan sort order loss nll gradient_norms",
    "optimizer": "optimizer_steps",
    "random": "draw sample dropout",
    "fft": "fft",
    "data": "creation indexing indexing_masks joining scatter slicing views blocks files placed upload",
}
FAMILIES = (*_FILES, "elementwise")
#: The families that people look for first.
MAIN_FAMILIES = ("matmul", "attention", "elementwise")
#: The families whose kernels are cuDNN's on an NVIDIA GPU.
_CUDNN_FAMILIES = ("convolution", "recurrent")
_FAMILIES = {file: family for family, files in _FILES.items() for file in files.split()}


def family(op: Op) -> str:
    """The family of an op."""
    return _FAMILIES.get(op.file, "elementwise")


def uses_cudnn(op: Op) -> bool:
    """Whether cuDNN computes it on an NVIDIA GPU."""
    return op.flops is not None and family(op) in _CUDNN_FAMILIES
