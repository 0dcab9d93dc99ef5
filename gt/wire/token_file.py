"""The file in which a server keeps the tokens of its users.

The server does not store tokens. It stores the CURVE public key that follows from each token: the key identifies the
holder of the token, and the token does not follow from the key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gt.errors import ConfigError
from gt.wire.identities import OWNER, PeerIdentity, Quota

USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class TokenRecord(msgspec.Struct, frozen=True):
    user: str
    role: str
    #: the public key that follows from the token, in Z85
    key: str
    #: seconds since 1970
    created: float
    quota: Quota = Quota()


class TokenFile:
    """The tokens that a server accepts, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"

    def read(self) -> list[TokenRecord]:
        """Raises ConfigError if the file is damaged."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[TokenRecord])
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, OSError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from None

    def add(self, record: TokenRecord) -> None:
        """Raises ConfigError if the user has a token for this role."""
        if not USER_NAME.fullmatch(record.user):
            raise ConfigError(f"{record.user!r} is no name of a user: use letters, digits, - and _")
        with self._locked():
            records = self.read()
            if any((known.user, known.role) == (record.user, record.role) for known in records):
                raise ConfigError(
                    f"{record.user} has a token as {record.role}; revoke it first: gt token revoke {record.user}"
                )
            self._write([*records, record])

    def remove(self, user: str) -> list[TokenRecord]:
        """Remove all tokens of a user, and return them. Raises ConfigError if there are none."""
        with self._locked():
            records = self.read()
            removed = [record for record in records if record.user == user]
            if not removed:
                raise ConfigError(f"{user} has no token; gt token list shows who has one")
            self._write([record for record in records if record.user != user])
        return removed

    def stamp(self) -> tuple[int, int]:
        """Changes whenever the file is written."""
        try:
            status = self.path.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Inside the block no other process changes the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_name(".tokens.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, records: list[TokenRecord]) -> None:
        draft = self.path.with_name(f".tokens-{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(records), indent=1))
        os.replace(draft, self.path)


class Identities:
    """Which public keys a server accepts, and who they are. It follows the file of tokens."""

    def __init__(self, owner: bytes | None, tokens: TokenFile | None = None) -> None:
        """``owner``: the public key of the one secret, in Z85."""
        self._owner, self._tokens = owner, tokens
        self._stamp = (-1, -1)
        self._by_key: dict[bytes, PeerIdentity] = {}
        self.reload()

    def find(self, key: bytes) -> PeerIdentity | None:
        """Who holds the token of this public key (Z85); None: nobody."""
        return self._by_key.get(key)

    def set_owner(self, owner: bytes) -> None:
        self._owner = owner
        self._by_key[owner] = OWNER

    def reload(self) -> bool:
        """Read the file again if it changed. Returns whether it did. Raises ConfigError if it is damaged."""
        if self._tokens is not None and (stamp := self._tokens.stamp()) == self._stamp:
            return False
        records = self._tokens.read() if self._tokens is not None else []
        self._stamp = stamp if self._tokens is not None else self._stamp
        self._by_key = {r.key.encode(): PeerIdentity(r.user, r.role, r.quota) for r in records}
        if self._owner is not None:
            self._by_key[self._owner] = OWNER
        return True
