"""Errors of a worker that are not failures of an instruction."""

from __future__ import annotations


class DeviceBroken(Exception):
    """The device cannot be used any more in this process, so the worker ends."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class if the text is empty."""
    return str(error).strip().split("\n")[0] or type(error).__name__
