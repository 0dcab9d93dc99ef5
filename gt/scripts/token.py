"""``python -m gt.scripts.token new alice --role client``: the tokens of the users of a server."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gt.launch.command_name import command_name, make_parser
from gt.scripts.command import run
from gt.wire.auth import create_token
from gt.wire.identities import TOKEN_ROLES, parse_quota
from gt.wire.server_keys import key_text, make_server_keys, server_folder
from gt.wire.token_file import TokenFile


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.token", __doc__)
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="new: make a token and print it, once; list: show who has one; revoke: take back all tokens of a user, "
        "whose connections end",
    )
    parser.add_argument("user", nargs="?", default="")
    parser.add_argument("--role", choices=TOKEN_ROLES, default="client", help="what its holder may be (default client)")
    parser.add_argument(
        "--quota",
        default="",
        metavar="NAME=VALUE,…",
        help="memory=4GiB (on each worker), weight=2 (share of time), sessions=3, transfers=8, definitions=5000, "
        "snapshots=16GiB",
    )
    parser.add_argument(
        "--folder", type=Path, default=server_folder(), help="the server's folder (default ~/.config/gt/server)"
    )
    options = parser.parse_args(argv)
    if bool(options.user) != (options.action != "list"):
        parser.error("new and revoke need the name of a user, list has none")
    return run(command_name("gt.scripts.token"), lambda: ACTIONS[options.action](options))


def _new(options: argparse.Namespace) -> int:
    print(create_token(options.folder, options.user, options.role, parse_quota(options.quota)))
    print(
        f"{options.user} sets GT_TOKEN to this, or puts it into ~/.config/gt/token (mode 600). It is not shown again.",
        file=sys.stderr,
    )
    return 0


def _list(options: argparse.Namespace) -> int:
    print(f"server key {key_text(make_server_keys(options.folder).public)}")
    rows = [
        (record.user, record.role, time.strftime("%Y-%m-%d", time.localtime(record.created)), str(record.quota))
        for record in TokenFile(options.folder).read()
    ]
    width = max((len(user) for user, *_ in rows), default=0)
    for user, role, created, quota in rows:
        print(f"{user:<{width}}  {role:<8}  {created}  {quota}".rstrip())
    return 0


def _revoke(options: argparse.Namespace) -> int:
    removed = TokenFile(options.folder).remove(options.user)
    print(f"revoked {options.user}: {', '.join(record.role for record in removed)}")
    return 0


ACTIONS = {"new": _new, "list": _list, "revoke": _revoke}

if __name__ == "__main__":
    sys.exit(main())
