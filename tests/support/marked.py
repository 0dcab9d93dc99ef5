"""All processes of one test, found by a variable of their environment: also those that lost their parent."""

from __future__ import annotations

import contextlib
import pathlib
import uuid

from tests.support.processes import alive, wait_until

#: A variable that every process of a test has, here and behind ssh.
MARK = "GT_TEST_MARK"


class Marked:
    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def processes(self) -> dict[int, str]:
        """Process id -> command of all processes of this test, on either side."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes() and alive(pid := int(entry.name)):
                    found[pid] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def wait_for_the_end(self) -> None:
        """No process of this test is left, on either side."""
        try:
            wait_until(lambda: not self.processes(), what="the end of all processes")
        except AssertionError:
            raise AssertionError(f"left behind: {self.processes()}") from None
