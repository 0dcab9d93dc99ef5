"""The folder of compiled code, which later processes reuse: in GT_CACHE_DIR, else in ~/.cache/gt."""

from __future__ import annotations

import contextlib
import os
import re
import stat


def set_cache_folder(device: str, torch_version: str, triton_version: str) -> str:
    """Make torch and Triton use a folder for this device and these versions; returns it, or "" if it is not usable.

    They run the code in it, so nobody else may write there.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    base = os.environ.get("GT_CACHE_DIR") or os.path.join(home, "gt")
    if base.startswith("~"):  # no home folder is known: this would be a folder of that name right here
        return ""
    name = re.sub(r"[^A-Za-z0-9.+-]+", "_", f"torch-{torch_version}-triton-{triton_version}-{device}")
    folder = os.path.join(base, "compile", name)
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.access(folder, os.W_OK) and _is_own(folder):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
            os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(folder, "triton"))
            return folder
    return ""


def _is_own(folder: str) -> bool:
    """Whether only this user may write to a folder."""
    status = os.stat(folder)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
