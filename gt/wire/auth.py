"""Authentication: each user has one secret, and the ZeroMQ CURVE keys of both sides are derived from it.

The secret, in code the *token*, is GT_TOKEN or the file ``token`` in the user's configuration folder. The first start
of a server creates the file; only its owner can read it. A peer without the secret fails the handshake. The connection
of a peer with the secret is encrypted, and both sides are authenticated. The private Unix socket of a local auto-start
needs no secret, because only its user can enter the folder that contains it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from gt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Keys:
    """The key pair of one side, and the public key of the other, all in Z85 as ZeroMQ requires."""

    public: bytes
    secret: bytes
    peer: bytes


def token_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "gt" / "token"


def operator_file() -> Path:
    """Where a server keeps the operator's token: who has it sees the instructions of all clients."""
    return token_file().with_name("operator")


def find_token() -> str | None:
    """The user's secret; None if there is none yet."""
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


def make_token() -> str:
    """Create the secret in the user's configuration folder, unless another process did so first; returns it."""
    return find_token() or _make(token_file())


def make_operator_token() -> str:
    """The operator's token, which is created like the secret."""
    return find_operator_token() or _make(operator_file())


def _make(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".token-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        os.link(draft, path)  # unlike rename, it never replaces a secret that other processes may use already
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    token = _read(path)
    if token is None:
        raise ConfigError(f"{path} is empty; remove it to get a new secret, or set GT_TOKEN")
    return token


def server_keys(token: str) -> Keys:
    return _keys(token, side="server", other="peer")


def peer_keys(token: str) -> Keys:
    """The keys of clients and workers."""
    return _keys(token, side="peer", other="server")


def _keys(token: str, *, side: str, other: str) -> Keys:
    import zmq
    from zmq.utils import z85

    def key_pair(name: str) -> tuple[bytes, bytes]:
        # the token may be a passphrase: scrypt makes guessing expensive
        raw = hashlib.scrypt(token.encode(), salt=f"gt/{name}".encode(), n=1 << 12, r=8, p=1, dklen=32)
        secret = z85.encode(raw)
        return zmq.curve_public(secret), secret

    public, secret = key_pair(side)
    return Keys(public, secret, key_pair(other)[0])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def token_for_server(host: str) -> str:
    """The user's secret. A server on loopback creates a missing one. A server that others can reach must not."""
    token = find_token()
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and there is no secret to keep them out. "
            f"Set GT_TOKEN here and on every client and worker, or start a server on 127.0.0.1 once, "
            f"which creates {token_file()}, and copy that file to the other machines."
        )
    return token or make_token()


def token_for_peer() -> str:
    """The user's secret, for a client or a worker. Raises ConfigError if there is none."""
    token = find_token()
    if token is None:
        raise ConfigError(
            f"there is no secret to authenticate with: set GT_TOKEN to the server's, or copy its {token_file()} here "
            f"(a server's first start creates it)"
        )
    return token
