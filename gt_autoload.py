"""What `import torch` calls if GT is installed: the entry point in the group ``torch.backends``.

It does nothing unless ``GT_TORCH_DEVICE`` is set. torch has one place for a device of another project, and registering
one takes most of a second; a program that does not use the device must notice neither. For the same reason
this module is outside the package: `import gt` costs more than a look at the environment.
"""

import os


def load() -> None:
    """Register the device ``gtx``, if the user asked for it. A worker never does: it removes the variable."""
    if os.environ.get("GT_TORCH_DEVICE", "0") not in ("", "0"):
        import gt.torch_device  # noqa: F401
