"""The name of a command in its help and its errors: ``gt top``, or ``gt.scripts.top``, as the user called it."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from gt.errors import ConfigError

T = TypeVar("T")

#: What `gt.__main__` puts before the name of a command in ``sys.argv[0]``.
PREFIX = "gt "


def command_name(module: str) -> str:
    """The name before an error of the command that this module implements."""
    called = sys.argv[0]
    return called if called.startswith(PREFIX) else module


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """The error of a name that there is not, with the one that was meant or all that there are."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1)
    suggestion = f"did you mean {near[0]!r}?" if near else f"the {kind}s are {', '.join(known)}"
    return f"there is no {kind} {name!r}; {suggestion}"


def make_parser(module: str, docstring: str | None) -> argparse.ArgumentParser:
    """A parser whose help has the name of the command as the user called it, and the docstring without its markup."""
    name = command_name(module)
    # the first words of the docstring are the command; the line "usage" has it already
    text = re.sub(r"\A``.*?``: |`", "", docstring or "")
    return argparse.ArgumentParser(
        prog=name if name.startswith(PREFIX) else f"python -m {name}", description=text[:1].upper() + text[1:]
    )


def option_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The ``type`` of an option: the parser reports a ConfigError in its own words."""

    def parse_option(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_option
