"""``python -m gt.scripts.down``: end what gt up started, on all hosts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from gt.errors import ClusterError
from gt.launch.command_name import command_name, make_parser
from gt.launch.up_state import holder, read_state
from gt.scripts.command import run

#: The processes on all hosts must have ended within this time.
END_TIMEOUT_S = 30.0
CHECK_S = 0.05


def main(argv: list[str] | None = None) -> int:
    make_parser("gt.scripts.down", __doc__).parse_args(argv)
    return run(command_name("gt.scripts.down"), _down)


def _down() -> int:
    state = read_state()
    if state is None:
        print("nothing is up")
        return 0
    if state.host != socket.gethostname():
        raise ClusterError(f"gt up runs on {state.host} (pid {state.pid}); call gt down there")
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_TIMEOUT_S
    while holder() == state.pid:
        if time.monotonic() > deadline:
            raise ClusterError(f"gt up (pid {state.pid}) has not ended after {END_TIMEOUT_S:g} s")
        time.sleep(CHECK_S)
    print(f"ended the server and its workers ({state.workers or 'some were still joining'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
