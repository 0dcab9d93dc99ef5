"""A real sshd on loopback addresses, with keys and a configuration of its own. Nothing of the machine's is changed."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import shutil
import subprocess
import sys

from tests.support.marked import MARK, Marked
from tests.support.processes import LONG, ROOT, Process, environment, free_port, wait_until

#: name -> address. All are this machine; `Sshd` gives some of them faults.
HOSTS = {"node1": "127.0.0.2", "node2": "127.0.0.3", "locked": "127.0.0.4", "old": "127.0.0.5", "broken": "127.0.0.6"}


def find_sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def why_not() -> str:
    """Why these tests cannot run here; empty: they can."""
    if find_sshd() is None or shutil.which("ssh") is None:
        return "no sshd on this machine (Debian: apt-get install openssh-server)"
    if os.getuid() == 0:  # sshd of root needs this empty folder, which the package's service creates
        try:
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            return f"sshd cannot run: {error}"
    return ""


class Sshd(Marked):
    """Hosts behind ssh, whose settings folder is not that of this side."""

    def __init__(self, stack: contextlib.ExitStack, folder: pathlib.Path) -> None:
        self._stack, self._folder, self.port = stack, folder, free_port()
        super().__init__()
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized").write_text((folder / "user_key.pub").read_text())
        (folder / "sshd_config").write_text(self._server_config())
        (folder / "ssh_config").write_text(self._client_config())
        key = (folder / "host_key.pub").read_text()
        (folder / "known").write_text("".join(f"[{address}]:{self.port} {key}" for address in HOSTS.values()))
        self._log = folder / "log"
        daemon = subprocess.Popen([find_sshd(), "-D", "-f", folder / "sshd_config", "-E", self._log])
        stack.callback(daemon.wait, LONG)
        stack.callback(daemon.terminate)
        wait_until(lambda: self._log.exists() and "listening" in self._log.read_text(), what="sshd listens")

    #: the option of gt up
    @property
    def ssh(self) -> str:
        return f"ssh -F {self._folder / 'ssh_config'}"

    def _server_config(self) -> str:
        variables = f"{MARK}={self.mark} XDG_CONFIG_HOME={self._folder / 'there'} XDG_RUNTIME_DIR={self._folder}"
        lines = [f"ListenAddress {address}:{self.port}" for address in HOSTS.values()]
        lines += [f"HostKey {self._folder / 'host_key'}", f"AuthorizedKeysFile {self._folder / 'authorized'}"]
        lines += ["PidFile none", "UsePAM no", "StrictModes no", "PasswordAuthentication no", "LogLevel INFO"]
        lines += [f"SetEnv PYTHONPATH={ROOT} {variables}"]
        lines += [f"Match LocalAddress {HOSTS['locked']}", "AuthorizedKeysFile none"]
        lines += [f"Match LocalAddress {HOSTS['old']}", f"SetEnv PYTHONPATH={self._folder / 'old'} {variables}"]
        lines += [f"Match LocalAddress {HOSTS['broken']}", f"SetEnv PYTHONPATH={ROOT} GT_SILENCE_S=wrong {variables}"]
        return "\n".join(lines) + "\n"

    def _client_config(self) -> str:
        lines = [f"Host {name}\n  HostName {address}" for name, address in HOSTS.items()]
        lines += ["Host *", f"  Port {self.port}", f"  User {getpass.getuser()}"]
        lines += [f"  IdentityFile {self._folder / 'user_key'}", "  IdentitiesOnly yes"]
        lines += [f"  UserKnownHostsFile {self._folder / 'known'}", "  StrictHostKeyChecking yes"]
        return "\n".join(lines) + "\n"

    def here(self) -> dict[str, str]:
        """Variables of a user on this side, who has no server or secret yet."""
        return {
            "XDG_CONFIG_HOME": str(self._folder / "here"),
            "XDG_RUNTIME_DIR": str(self._folder),
            MARK: self.mark,
            "GT_TOKEN": "",
            "GT_OPERATOR_TOKEN": "",
        }

    def start(self, *words: str) -> Process:
        """``gt up`` or another program on this side."""
        process = Process(*words, **self.here())
        self._stack.callback(process.close)
        return process

    def up(self, *words: str) -> Process:
        port = free_port()
        ports = [] if "--ports" in words else ["--ports", f"{port}-{port + 20}"]
        return self.start("-m", "gt", "up", "--ssh", self.ssh, "--backend", "numpy", *ports, *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        command, variables = [sys.executable, *words], environment(**self.here())
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONG)
