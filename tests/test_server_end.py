"""A signal ends the server, also if it comes while Python drops exceptions."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from tests.support.processes import Process

#: The first tick of the server runs a destructor, in which the signal arrives.
IN_A_DESTRUCTOR = """
import os, sys
from gt.dispatcher.server import Server
from gt.server import main

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(100):
            pass

def first_tick(self, now):
    Server._tick = tick
    Interrupted()
    tick(self, now)

tick, Server._tick = Server._tick, first_tick
sys.exit(main(["--unix", {path!r}]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_inside_a_destructor_ends_the_server(number: signal.Signals, tmp_path: Path) -> None:
    program = IN_A_DESTRUCTOR.format(number=int(number), path=str(tmp_path / "server"))
    with contextlib.closing(Process("-c", program)) as server:
        server.expect("Exception ignored")
        assert server.end() == 0


def test_a_background_job_of_a_shell_ignores_ctrl_c(tmp_path: Path) -> None:
    """A script starts it with `&`, and Ctrl-C is meant for the script's program in the foreground."""
    shell = "sh", "-c", 'trap "" INT; exec "$@"', "sh"
    with contextlib.closing(Process("-m", "gt.server", "--unix", str(tmp_path / "server"), before=shell)) as server:
        server.expect("listening")
        status = Path(f"/proc/{server.pid}/status").read_text()
        ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
        assert ignored >> (signal.SIGINT - 1) & 1
        server.kill(signal.SIGTERM)
        assert server.end() == 0
