"""``python -m gt.run script.py …``: runs a program of torch's on GT. In it, the devices ``gtx`` and ``cuda`` are GT."""

from __future__ import annotations

import pathlib
import runpy
import sys

USAGE = "usage: python -m gt.run script.py [arguments of the script]"


def main() -> None:
    """Run the script that the command line names, as Python would."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(USAGE)
    from gt.torch_device import cuda_names

    cuda_names.enter()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
