"""What other libraries need to work with GT's tensors: einops, torchvision, torchmetrics.

None of them is imported here. `install` adds a finder to Python's import system; when one of the libraries is imported,
before or after GT, the module of this folder that adapts it runs. Each file here is about one library.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

#: module of another library -> the module here that runs after it was imported
ADAPTERS = {
    "einops._backends": "gt.interop.einops_backend",
    "torchmetrics.metric": "gt.interop.torchmetrics_values",
    "torchvision.transforms.functional": "gt.interop.torchvision_images",
    "torchvision.utils": "gt.interop.torchvision_images",
}
#: modules that GT adds to another library -> where they are
ADDED = {"einops.layers.gt": "gt.interop.einops_layers"}


class _Finder:
    """Finds no module of its own, except those in `ADDED`; it runs the adapters after modules of other libraries."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name in ADDED:
            from importlib.util import find_spec, spec_from_file_location

            source = find_spec(ADDED[name])
            return spec_from_file_location(name, source.origin) if source else None
        if name not in ADAPTERS:
            return None
        finders = (finder.find_spec for finder in sys.meta_path if finder is not _Finder)
        spec = next(filter(None, (find(name, path, target) for find in finders)), None)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader, ADAPTERS[name])
        return spec


def _run_after(loader: Any, adapter: str) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        import_module(adapter).adapt(module)

    loader.exec_module = exec_module


def install() -> None:
    """Adapt what is imported already, and watch for what is imported later."""
    sys.meta_path.insert(0, _Finder)
    for name, adapter in ADAPTERS.items():
        if name in sys.modules:
            import_module(adapter).adapt(sys.modules[name])
