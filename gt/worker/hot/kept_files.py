"""Small files in the cache folder, which later processes read."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


class KeptFiles:
    """The files of one kind, found by their keys."""

    def __init__(self, folder: str, kind: str) -> None:
        """``folder``: the cache folder; "" if there is none, then nothing is kept."""
        self._folder = os.path.join(folder, kind) if folder else ""

    def find(self, key: str) -> Any:
        """What is kept under a key; None if nothing is, or if it cannot be read."""
        if not key or not self._folder:
            return None
        try:
            with open(os.path.join(self._folder, key)) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def keep(self, key: str, value: Any) -> None:
        if not key or not self._folder:
            return
        path = os.path.join(self._folder, key)
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "w") as file:
                json.dump(value, file)
            os.replace(file.name, path)
