"""``gt.hub``: downloads by torch, where torch is installed. `Module.load_state_dict` accepts torch's tensors."""

from __future__ import annotations

import importlib
import re
from typing import Any
from urllib.parse import urlparse as urlparse

from gt.missing import absent as _absent

__all__ = ["download_url_to_file", "get_dir", "load_state_dict_from_url", "set_dir"]
_absent("hub")

#: The hash in the name of a checkpoint file: ``resnet18-5c106cde.pth``.
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")


def _hub() -> Any:
    return importlib.import_module("torch.hub")


def get_dir() -> str:
    """The folder of torch's downloads."""
    return str(_hub().get_dir())


def set_dir(d: str) -> None:
    """Set the folder of torch's downloads."""
    _hub().set_dir(d)


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Download a file, as torch does."""
    _hub().download_url_to_file(url, dst, hash_prefix, progress)


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = True,
) -> dict[str, Any]:
    """Download a checkpoint of torch. The result has torch's tensors on the CPU; `load_state_dict` accepts them."""
    load = _hub().load_state_dict_from_url
    return load(url, model_dir, "cpu", progress, check_hash, file_name, weights_only)  # type: ignore[no-any-return]
