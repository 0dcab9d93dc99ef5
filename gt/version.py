"""The version and the protocol number. Peers exchange them at hello; another protocol number is refused."""

VERSION = "0.1.0"
PROTOCOL = 6
