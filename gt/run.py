"""``python -m gt.run script.py …``: runs a program of torch's, with the device ``gtx`` registered."""

from __future__ import annotations

import pathlib
import runpy
import sys

USAGE = "usage: python -m gt.run script.py [arguments of the script]"


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(USAGE)
    import gt.torch_device  # noqa: F401, registers the device

    sys.argv = sys.argv[1:]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
