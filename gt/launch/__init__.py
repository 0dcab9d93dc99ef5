"""Starting processes: the automatic local system, systems on several hosts, workers from a scheduler, and what a server
or worker sets up for its process.

The package imports only `gt.errors`, `gt.say`, `gt.version` and `gt.wire`; `gt.launch.clusters` also uses the client,
and is imported at the first use of one of its functions.
"""

from importlib import import_module
from typing import Any

#: The public functions, which `gt.launch.clusters` defines; `__init__.pyi` has their types.
__all__ = ["ray", "slurm", "slurm_workers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("gt.launch.clusters"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
