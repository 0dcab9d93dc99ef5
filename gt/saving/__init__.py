"""``gt.save`` and ``gt.load``.

files         gt.save and gt.load
headers       the header of a safetensors file
writing       writing a file: by the workers where they can, and in one step
stored        reading tensors of files: by the workers where they can, each its own blocks
folders       folders of safetensors files, with an index
distributed   checkpoints of torch.distributed.checkpoint, which are only read
pickled_data  the data in a pickle, of which nothing is run
objects       what is not a tensor: dicts, lists, plain values, modules and other objects, as JSON
torch_files   files for torch.load, written by torch.save
forks         gt.snapshot and gt.fork: copies that stay on the workers
"""

from gt.saving.files import load, save

__all__ = ["load", "save"]
