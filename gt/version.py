"""The version and the protocol number. Peers exchange them at hello; another protocol number is refused."""

VERSION = "0.1.0"
PROTOCOL = 14

#: torch.version's names. The client uses no device, so it was built for none; the workers' torch was.
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
