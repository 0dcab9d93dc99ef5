"""``gt.ao``: the parts of ``torch.ao`` that models import without using quantized tensors. GT has none."""

from gt.ao import quantization as quantization
from gt.missing import absent as _absent

_absent("ao")
