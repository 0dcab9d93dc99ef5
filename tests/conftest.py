from __future__ import annotations

import contextlib
import signal

import pytest

from tests.processes import System

# A shell without job control starts a background job with SIGINT ignored. Child processes inherit that, and Ctrl-C
# would never reach those that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
