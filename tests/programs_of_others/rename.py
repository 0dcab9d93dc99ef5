"""The rename: the name `torch` becomes `gt`, as an editor's "rename symbol" would do it. Strings and comments stay.

`torch` after a dot belongs to another package (`safetensors.torch`) and stays as well, except in `einops.layers.torch`,
for which GT has `einops.layers.gt`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import re
import sys
import tokenize
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

#: dotted paths that end in torch and have a counterpart of GT
COUNTERPARTS = ("einops.layers.torch",)
_WORD = re.compile(r"(?<![\w.])torch\b")


def rename(source: str) -> str:
    """The source with `gt` in place of the name `torch`."""
    lines = source.splitlines(keepends=True)
    for row, start, end, text in reversed(_replacements(source)):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + text + line[end:]
    return "".join(lines)


def _replacements(source: str) -> list[tuple[int, int, int, str]]:
    """Row, start, end and new text of every place to change, in order."""
    found: list[tuple[int, int, int, str]] = []
    path = ""  # the dotted path that ends at the current token
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (last_row, end) = token.start, token.end
        if token.type == tokenize.NAME:
            path = path + token.string if path.endswith(".") else token.string
            if token.string == "torch" and (path == "torch" or path in COUNTERPARTS):
                found.append((row, start, end, "gt"))
        elif token.string == "." and path:
            path += "."
        else:
            path = ""
            if token.type == tokenize.STRING and row == last_row and "f" in re.split("['\"]", token.string)[0].lower():
                new = _rename_in_braces(token.string)  # Python 3.11 has no tokens for what is inside
                if new != token.string:
                    found.append((row, start, end, new))
    return found


def _rename_in_braces(text: str) -> str:
    return re.sub(r"\{[^{}]*\}", lambda braces: _WORD.sub("gt", braces[0]), text)


class _Renaming(importlib.machinery.SourceFileLoader):
    """Loads a module with its source renamed and edited."""

    edit: Callable[[str, str], str]

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        source = self.edit(path, importlib.util.decode_source(self.get_data(path)))
        return compile(rename(source), path, "exec", dont_inherit=True)


class RenamedModules(importlib.abc.MetaPathFinder):
    """Renames modules when they are imported: those in a folder, and those of installed packages that are named."""

    def __init__(self, folder: str, packages: Sequence[str], edit: Callable[[str, str], str]) -> None:
        self._folder, self._packages, self._edit = folder, tuple(packages), edit

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        named = any(name == package or name.startswith(f"{package}.") for package in self._packages)
        if not named and not (spec.origin or "").startswith(self._folder):
            return None
        spec.loader = _Renaming(spec.loader.name, spec.loader.path)
        spec.loader.edit = self._edit
        return spec

    def install(self) -> None:
        sys.meta_path.insert(0, self)
