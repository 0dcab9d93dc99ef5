"""Authentication: whoever connects has a token, from which its ZeroMQ CURVE keys are derived.

One person needs one *secret* for all their processes: GT_TOKEN, or the file ``token`` in the user's configuration
folder. The first start of a server creates the file; only its owner can read it. On a server for several users each of
them has a token of their own, which ``gt token new`` prints (see `gt.wire.identities`).

The server's key pair is random (see `gt.wire.server_keys`), so nobody who has a token can pretend to be the server. A
peer whose key the server does not know fails the handshake. Connections are encrypted, and both sides are
authenticated. The private Unix socket of a local auto-start needs no token, because only its user can enter the folder
that contains it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from gt.errors import ConfigError, ConnectionLost
from gt.wire.addresses import join_address
from gt.wire.identities import Quota
from gt.wire.server_keys import (
    KeyPair,
    config_folder,
    create_once,
    key_pair_from,
    key_text,
    make_server_keys,
    server_key,
    split_token,
)
from gt.wire.token_file import TokenFile, TokenRecord

#: Seconds between two attempts to reach a server that may still be starting.
CHECK_S = 0.2
#: A server that other machines can reach refuses a secret with fewer characters.
MIN_SECRET_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a client or a worker, and the public key of its server, all in Z85 as ZeroMQ requires."""

    public: bytes
    secret: bytes
    server: bytes
    #: "host:port" if the server's key is added to the known servers when the server has proved that it has it
    remember_as: str = ""


def token_file() -> Path:
    return config_folder() / "token"


def operator_file() -> Path:
    """Where a server keeps the operator's token: who has it sees the instructions of all clients."""
    return config_folder() / "operator"


def find_token() -> str | None:
    """The user's token; None if there is none yet."""
    return os.environ.get("GT_TOKEN", "").strip() or _read(token_file())


def find_operator_token() -> str | None:
    """The operator's token, if this user has one."""
    return os.environ.get("GT_OPERATOR_TOKEN", "").strip() or _read(operator_file())


def _read(path: Path) -> str | None:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{path} can be read by others; chmod 600 it, or remove it to get a new secret")
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None


def make_token(server: str) -> str:
    """Create the secret in the user's configuration folder, unless another process did so first; returns it.

    ``server``: the public key of the user's server as text. It is in the file too, so that a copy of the file is all
    that another machine needs.
    """
    return find_token() or _make(token_file(), f"{secrets.token_hex(32)}@{server}")


def make_operator_token() -> str:
    """The operator's token, which is created like the secret."""
    return find_operator_token() or _make(operator_file(), secrets.token_hex(32))


def _make(path: Path, content: str) -> str:
    create_once(path, content)
    token = _read(path)
    if token is None:
        raise ConfigError(f"{path} is empty; remove it to get a new secret, or set GT_TOKEN")
    return token


def token_keys(token: str) -> KeyPair:
    """The key pair that follows from a token."""
    # the secret may be a passphrase: scrypt makes guessing expensive
    secret, _ = split_token(token)
    return key_pair_from(hashlib.scrypt(secret.encode(), salt=b"gt/peer", n=1 << 12, r=8, p=1, dklen=32))


def create_token(folder: Path, user: str, role: str, quota: Quota) -> str:
    """A new token, which the server of this folder accepts. Raises ConfigError."""
    token = f"{user}.{role}.{secrets.token_hex(32)}@{key_text(make_server_keys(folder).public)}"
    TokenFile(folder).add(TokenRecord(user, role, token_keys(token).public.decode(), time.time(), quota))
    return token


def peer_keys(token: str, server: bytes, remember_as: str = "") -> Keys:
    """The keys of a client or a worker of the server with this public key."""
    own = token_keys(token)
    return Keys(own.public, own.secret, server, remember_as)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def token_for_server(host: str, key: str) -> str:
    """The user's secret. A server on loopback creates a missing one. A server that others can reach must not.

    ``key``: the server's public key as text.
    """
    token = find_token()
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and there is no secret to keep them out. "
            f"Set GT_TOKEN here and on every client and worker, or start a server on 127.0.0.1 once, "
            f"which creates {token_file()}, and copy that file to the other machines."
        )
    if token is not None:
        check_strength(token, host)
    return token or make_token(key)


def check_strength(token: str, host: str) -> None:
    """Raises ConfigError if a server at this host can be reached by others, who could guess the secret."""
    secret, _ = split_token(token)
    if len(secret) < MIN_SECRET_LENGTH and not is_loopback(host):
        raise ConfigError(
            f"the secret (GT_TOKEN, or {token_file()}) has {len(secret)} characters. {host} is another machine, or can "
            f"be reached from one: use at least {MIN_SECRET_LENGTH}, or better a random one: openssl rand -hex 32"
        )


def no_server(host: str, port: int | str, seconds: float) -> ConnectionLost:
    """The error that no server answers, with the commands that start one."""
    return ConnectionLost(
        f"no GT server answers at {join_address(host, port)} after {seconds:g} s; start one with: "
        f"python -m gt.server -p {port}, and workers with: python -m gt.worker --host {host} -p {port}"
    )


def connection_keys(host: str, port: int, seconds: float, token: str | None = None) -> Keys:
    """The keys of a client or a worker of this server, which may still be starting: the first server of a user creates
    the secret and its own key. Raises ConnectionLost if no server answers in time, ConfigError if one does and there is
    no secret, or if the server's key is not known. ``token``: instead of the user's."""
    deadline = time.monotonic() + seconds
    while (keys := _find_keys(host, port, token)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise no_server(host, port, seconds)
        try:
            socket.create_connection((host, port), left).close()
        except OSError:
            time.sleep(min(CHECK_S, left))
        else:  # it creates both before it listens
            return _find_keys(host, port, token) or _raise_missing(host, port)
    return keys


def _find_keys(host: str, port: int, token: str | None) -> Keys | None:
    """None if there is no token, or if the server's key is not known."""
    token = token or find_token()
    if token is None:
        return None
    check_strength(token, host)
    address = join_address(host, port)
    key = server_key(address, split_token(token)[1])
    return None if key is None else peer_keys(token, key, "" if is_loopback(host) else address)


def _raise_missing(host: str, port: int) -> Keys:
    if find_token() is None:
        raise ConfigError(
            f"there is no secret to authenticate with: set GT_TOKEN to the server's, or copy its {token_file()} here "
            f"(a server's first start creates it)"
        )
    address = join_address(host, port)
    raise ConfigError(
        f"the public key of the server at {address} is not known here. gt server prints it: add it to the secret, "
        f"GT_TOKEN=SECRET@KEY, or add the line {address} KEY to {config_folder() / 'known_servers'}"
    )
