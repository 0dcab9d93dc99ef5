"""Run a program of PyTorch on GT: in the script, the devices gtx and cuda are GT."""

from __future__ import annotations

import argparse
import pathlib
import runpy
import sys
from importlib.util import find_spec

from gt.client.stream import connect
from gt.errors import ConfigError, GtError
from gt.launch.backend import INSTALL_TORCH
from gt.launch.command_name import command_name, make_parser, option_type

EPILOG = """\
examples:
  gt run train.py --compile=False               on workers that are started for it, on this machine
  gt run --workers 2 train.py                   on two of them
  gt run --connect host:9000 train.py           on a running server
  GT_CONFIG=sharding.yaml gt run train.py       with its tensors split as the file says
In the script, device="cuda", .cuda() and torch.cuda are GT; so is device="gtx".
What is different from a GPU: docs/torch.md"""


def _fail(text: str) -> int:
    print(f"{command_name('gt.run')}: {text}", file=sys.stderr)
    return 2


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{text}: at least one worker is needed")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Run the script that the command line names, as Python would."""
    parser = make_parser("gt.run", __doc__)
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawTextHelpFormatter
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=option_type(_count), metavar="N", help="start a local system of N workers")
    where.add_argument("--connect", metavar="HOST:PORT", help="use this server")
    parser.add_argument("script", type=pathlib.Path, help="a program that imports torch")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    arguments.required = False  # otherwise the error without a script names them too
    options = parser.parse_args(argv)
    if not options.script.is_file():
        return _fail(f"there is no file {str(options.script)!r}")
    if find_spec("torch") is None:
        return _fail(f"a PyTorch program needs torch: {INSTALL_TORCH}")
    try:
        _choose_system(options.workers, options.connect)
    except GtError as error:
        parser.error(str(error))
    from gt.torch_device.cuda import names  # torch takes long to import, and an option may be wrong

    names.enter()
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


def _choose_system(workers: int | None, address: str | None) -> None:
    if workers is not None:
        connect.gpu_workers(workers)
    elif address is not None:
        connect.connect(address)


if __name__ == "__main__":
    sys.exit(main())
