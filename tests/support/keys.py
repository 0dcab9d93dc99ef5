"""Keys of a server and of a peer with the secret, for tests of the transports."""

from __future__ import annotations

import pathlib
import shutil

from gt.wire.auth import peer_keys, token_keys
from gt.wire.server_keys import config_folder, key_pair_from
from gt.wire.token_file import Identities

SERVER_KEYS = key_pair_from(bytes(32))
PEER_KEYS = peer_keys("secret", SERVER_KEYS.public)
IDENTITIES = Identities(token_keys("secret").public)


def copy_server_key(folder: pathlib.Path) -> None:
    """Make this the folder XDG_CONFIG_HOME of somebody who knows this user's server, and has no other files of it."""
    shutil.copytree(config_folder() / "server", folder / "gt" / "server")
