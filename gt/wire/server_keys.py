"""The key pair of a server, and the servers whose public keys a client or worker knows.

A server's key pair is random, and its private key never leaves the folder of the server. A client or worker must know
the public key before it connects. It is found, in this order:

1. in the token: ``SECRET@KEY``;
2. in the file ``known_servers`` of the user's configuration folder, which has lines ``host:port KEY``. The key of a
   server on another machine is added at the first connection, and must be the same from then on;
3. in the folder of the user's own server.
"""

from __future__ import annotations

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from gt.errors import ConfigError, Refused


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both keys in Z85, as ZeroMQ requires."""

    public: bytes
    secret: bytes


def config_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "gt"


def server_folder() -> Path:
    """Where a server keeps its key pair and the tokens that it accepts."""
    return config_folder() / "server"


def known_servers_file() -> Path:
    return config_folder() / "known_servers"


def create_once(path: Path, content: str) -> None:
    """Create a file that only its owner can read, unless another process does so first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".draft-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.link(draft, path)  # unlike rename, it never replaces a secret that other processes may use already
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


# -- keys as text --------------------------------------------------------------------------


def key_text(key: bytes) -> str:
    """A key in Z85 as text that needs no quotes in a shell."""
    from zmq.utils import z85

    return base64.urlsafe_b64encode(z85.decode(key)).decode().rstrip("=")


def key_from_text(text: str) -> bytes | None:
    """The key in Z85; None if the text is no key."""
    from zmq.utils import z85

    if len(text) != 43:
        return None
    try:
        raw = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    except ValueError:
        return None
    return z85.encode(raw)


def split_token(token: str) -> tuple[str, bytes | None]:
    """The secret of a token, and the public key of its server if it has one."""
    secret, at, key = token.rpartition("@")
    server = key_from_text(key) if at else None
    return (token, None) if server is None else (secret, server)


# -- the server's own keys -------------------------------------------------------------------


def key_pair_from(raw: bytes) -> KeyPair:
    """The key pair whose private key are these 32 bytes."""
    import zmq
    from zmq.utils import z85

    secret = z85.encode(raw)
    return KeyPair(zmq.curve_public(secret), secret)


def make_server_keys(folder: Path) -> KeyPair:
    """The key pair in a server's folder; the first call creates it. Raises ConfigError."""
    path = folder / "key"
    try:
        create_once(path, key_text(key_pair_from(secrets.token_bytes(32)).secret))
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others; remove it to get a new key, and give out new tokens")
        secret = key_from_text(path.read_text().strip())
        if secret is None:
            raise ConfigError(f"{path} is damaged; remove it to get a new key, and give out new tokens")
        from zmq.utils import z85

        pair = key_pair_from(z85.decode(secret))
        _write_public(folder / "key.pub", key_text(pair.public))
    except OSError as error:
        raise ConfigError(f"the server's key is kept in {path}: {error.strerror}") from None
    return pair


def _write_public(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    draft = path.with_name(f".draft-{secrets.token_hex(8)}")
    draft.write_text(text)
    os.replace(draft, path)


def own_server_key() -> bytes | None:
    """The public key of this user's own server, if there is one."""
    try:
        return key_from_text((server_folder() / "key.pub").read_text().strip())
    except OSError:
        return None


# -- known servers -----------------------------------------------------------------------------


def known_key(address: str) -> bytes | None:
    """The public key of the server at ``host:port``, if the file of known servers has it."""
    try:
        lines = known_servers_file().read_text().splitlines()
    except OSError:
        return None
    pairs = [line.split() for line in lines]
    return next((key_from_text(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == address), None)


def server_key(address: str, given: bytes | None) -> bytes | None:
    """The public key of the server at ``host:port``; ``given``: the one in the token. None if it is not known.

    Raises Refused if the token has another key than the server had before.
    """
    known = known_key(address)
    if given is not None and known is not None and given != known:
        raise Refused(
            f"{address}: the token is for a server with the key {key_text(given)}, but {known_servers_file()} has "
            f"{key_text(known)} for this address. If the server was set up anew, remove the line"
        )
    return given or known or own_server_key()


def remember_server(address: str, key: bytes) -> None:
    """Add a server to the file of known servers. A file that cannot be written is no error: the token has the key."""
    if known_key(address) is not None:
        return
    path = known_servers_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(f"{address} {key_text(key)}\n")
    except OSError:
        return
