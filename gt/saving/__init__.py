"""``gt.save`` and ``gt.load``.

files        safetensors files: written and read by the workers where they can
objects      what is not a tensor: dicts, lists, plain values, modules and other objects, as JSON
torch_files  files for torch.load, written by torch.save
"""

from gt.saving.files import load, save

__all__ = ["load", "save"]
