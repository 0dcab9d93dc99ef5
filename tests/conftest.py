from __future__ import annotations

import contextlib

import pytest

from tests.processes import System


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def system(stack):
    """A server with one numpy worker, which starts in a fraction of the time torch takes."""
    made = System(stack)
    made.worker("--backend", "numpy")
    return made
