"""The name of a command in its own help: ``gt top``, or ``python -m gt.scripts.top``, as the user called it."""

from __future__ import annotations

import sys

#: What `gt.__main__` puts before the name of a command in ``sys.argv[0]``.
PREFIX = "gt "


def command_name(module: str) -> str:
    """How the user called the command that this module implements."""
    called = sys.argv[0]
    return called if called.startswith(PREFIX) else f"python -m {module}"
