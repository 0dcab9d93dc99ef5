"""A real Slurm cluster on this machine, for tests: munged, slurmctld and two slurmd, in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess

from tests.support.processes import LONG, free_port, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
NODES = ("node1", "node2")
#: Where Debian puts the programs of administrators.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


def why_not() -> str:
    """Why Slurm cannot run here; empty if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.getuid() == 0 else "Slurm's daemons are started as root"


class SlurmCluster:
    """Two nodes with four cores and two GPUs each, as far as Slurm knows. They run until the stack is closed."""

    def __init__(self, stack: contextlib.ExitStack, folder: pathlib.Path) -> None:
        self.folder, self._stack = folder, stack
        self.config = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config), "PATH": PATH}
        self._start_munge()
        self.config.write_text(self._configuration())
        # Slurm counts these two files as GPUs, and tells jobs so in CUDA_VISIBLE_DEVICES
        (folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File=/dev/null,/dev/zero\n")
        self._start("slurmctld", "-D", "-i", "-c")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%t %D", check=False) == "idle 2", LONG, "two idle nodes")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        names = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / value}" for name, value in names.items()]
        self._start("munged", "--foreground", "--num-threads=2", "--force", *options)
        wait_until((self.folder / "munge.socket").exists, LONG, "munged")

    def _configuration(self) -> str:
        host, folder = socket.gethostname(), self.folder
        nodes = [
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 Gres=gpu:2" for n in NODES
        ]
        return "\n".join(
            [
                "ClusterName=tests",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={free_port()}",
                "SlurmUser=root",
                "SlurmdUser=root",
                f"AuthInfo=socket={folder}/munge.socket",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool-%n",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd-%n.pid",
                # a container has no cgroups to use
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SlurmdParameters=config_overrides",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU",
                "SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
                "ReturnToService=2",
                "MpiDefault=none",
                "GresTypes=gpu",
                "KillWait=2",
                *nodes,
                f"PartitionName=main Nodes={','.join(NODES)} Default=YES State=UP",
                "",
            ]
        )

    def _start(self, program: str, *options: str) -> None:
        (self.folder / "state").mkdir(exist_ok=True)
        log = (self.folder / f"{program}.log").open("ab")
        path = shutil.which(program, path=PATH)
        process = subprocess.Popen(
            [path, *options], env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
        self._stack.callback(self._end, process)

    def _end(self, process: subprocess.Popen) -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def run(self, *words: str, check: bool = True) -> str:
        """The output of one of Slurm's commands."""
        answer = subprocess.run(
            words, env=self._environment(), capture_output=True, text=True, timeout=LONG, check=False
        )
        assert not check or answer.returncode == 0, f"{words}: {answer.stderr}{self.logs()}"
        return answer.stdout.strip()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))

    def jobs(self) -> str:
        """The jobs that have not ended."""
        return self.run("squeue", "-h", "-o", "%i %T")

    def wait_until_idle(self) -> None:
        """Wait until every job has ended, and the nodes are free for the next test."""
        wait_until(lambda: not self.jobs(), LONG, "the end of all jobs")
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%t %D") == "idle 2", LONG, "two idle nodes")

    def cancel_all(self) -> None:
        self.run("scancel", "--user=root", check=False)
        self.wait_until_idle()
