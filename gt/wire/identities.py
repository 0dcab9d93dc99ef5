"""Who a peer is: its user, its role and its quota."""

from __future__ import annotations

import re

import msgspec

from gt.errors import ConfigError

#: Role of a token -> the roles that its holder may take in `gt.wire.messages.Hello`. "owner" has the one secret of a
#: person who uses their own server.
MAY_CONNECT_AS = {
    "client": ("client", "viewer"),
    "worker": ("worker",),
    "operator": ("viewer",),
    "owner": ("client", "worker", "viewer"),
}
#: The roles that `gt token new` gives.
TOKEN_ROLES = ("client", "worker", "operator")
#: The quotas in bytes.
SIZES = ("memory", "snapshots")
UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one user may use. 0: no limit but those that hold for everybody."""

    #: bytes of tensors on each worker, of all sessions of the user together
    memory: int = 0
    #: the share of time, compared with other users
    weight: float = 1.0
    #: sessions at a time
    sessions: int = 0
    #: large values that one session may send at a time
    transfers: int = 0
    #: signatures that one session may have defined at a time
    definitions: int = 0
    #: bytes of snapshots for recovery, of all sessions of the user together
    snapshots: int = 0

    def __str__(self) -> str:
        return ",".join(f"{name}={_shown(name, getattr(self, name))}" for name in msgspec.to_builtins(self))


class PeerIdentity(msgspec.Struct, frozen=True):
    #: empty for the owner
    user: str
    role: str
    quota: Quota = Quota()


OWNER = PeerIdentity("", "owner")


def _shown(name: str, value: float) -> str:
    if name in SIZES:
        unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if value and value % UNITS[u.lower()] == 0), "")
        return f"{int(value) // UNITS[unit.lower()]}{unit}"
    return f"{value:g}"


def parse_quota(text: str) -> Quota:
    """``memory=4GiB,weight=2,sessions=3`` as a quota. Raises ConfigError."""
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", value.strip())
        name, unit = name.strip(), match[2].lower() if match else ""
        if name not in Quota.__struct_fields__:
            raise ConfigError(f"--quota {part}: the quotas are {', '.join(Quota.__struct_fields__)}")
        if match is None or unit not in UNITS or (unit and name not in SIZES) or float(match[1]) <= 0:
            raise ConfigError(
                f"--quota {part}: not a positive number (memory and snapshots may have a unit: 512MiB, 4GiB)"
            )
        values[name] = float(match[1]) * UNITS[unit]
        if name != "weight":
            if values[name] != int(values[name]):
                raise ConfigError(f"--quota {part}: not a whole number")
            values[name] = int(values[name])
    return msgspec.convert(values, Quota)
