"""``gt.fft``: Fourier transforms, as in `torch.fft`. The functions are in `gt.functions.spectral.fft`."""

from gt.functions.spectral.fft import *
from gt.functions.spectral.fft import __all__ as __all__
from gt.missing import absent

absent("fft")
