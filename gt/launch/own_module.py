"""How GT runs one of its own modules in a child process."""

from __future__ import annotations

import os
import sys

#: Options of a server that GT starts for one user: the network of the job counts as private, as it does for torchrun.
TRUSTED_NETWORKS = ("--private-network", "0.0.0.0/0", "--private-network", "::/0")


def module_command(module: str, *options: str) -> list[str]:
    """The command that runs a module of GT.

    ``-P``: without it, Python looks for modules in the current folder first, and a user's ``random.py`` there, or a
    folder ``gt``, would take the place of a library.
    """
    return [sys.executable, "-P", "-m", module, *options]


def module_environment(**extra: str) -> dict[str, str]:
    """The environment in which `module_command` finds the GT that this process runs."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **extra, "PYTHONPATH": path}
