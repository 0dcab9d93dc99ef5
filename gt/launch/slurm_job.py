"""A Slurm job whose tasks are the workers of one client: submitted by it, followed while it runs, cancelled with it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

from gt.errors import ConfigError, NoWorkers
from gt.launch.own_module import module_command, module_environment
from gt.launch.slurm_worker import WORKER_ENDED, any_meeting_file, read_meeting_file
from gt.say import progress, warn
from gt.wire.auth import Keys

#: Submits the job and cancels it when its standard input ends: when the client closes it, or has ended in whatever way.
#: It is a process of its own, so there is no moment at which the job exists and nobody cancels it.
KEEPER = """
trap '' PIPE INT TERM HUP
id=$(sbatch --parsable "$@" < /dev/null) || exit
id=${id%%;*}
echo "$id"
read -r line
exec scancel --quiet "$id"
"""
#: Seconds between two questions to Slurm about the job.
CHECK_S = 1.0
#: Seconds for an answer of one of Slurm's commands, and for `scancel` at the end.
COMMAND_TIMEOUT_S = 30.0
#: Seconds between the start of the job and the last worker.
START_TIMEOUT_S = 300.0
#: Seconds that Slurm may take to record why a job has ended.
END_REASON_TIMEOUT_S = 5.0
#: States of a job that has not ended.
NOT_STARTED, RUNNING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"), ("RUNNING", "SUSPENDED", "STOPPED")
LOG_LINES = 8


class JobState(NamedTuple):
    #: a word of Slurm's, such as PENDING; empty if Slurm does not answer
    state: str
    reason: str = ""
    nodes: str = ""


class SlurmJob:
    """Submits a job with these options of sbatch. Raises ConfigError if it is refused.

    `wait_for_server` completes it: then it has an address.
    """

    address: str
    keys: Keys
    start_timeout = START_TIMEOUT_S

    def __init__(
        self, options: list[str], workers: int, time_limit: str, folder: Path, worker_options: list[str]
    ) -> None:
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "gt.launch.slurm: there is no sbatch here; call it on a machine from which jobs are submitted"
            )
        self.workers, self._time_limit, self._folder = workers, time_limit, folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        task = shlex.join(module_command("gt", "slurm-worker", "--folder", str(folder), *worker_options))
        # srun does not take the cores of a task from the job, and one task that fails must not end the others
        step = f"exec srun --kill-on-bad-exit=0 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} {task}"
        fixed = ["--job-name=gt", "--no-requeue", f"--output={folder}/%j.log", f"--wrap={step}"]
        self._shown, self._checked, self._running_since = "", 0.0, 0.0
        self._stopping = threading.Lock()
        self.id, self.name = "", "the Slurm job"
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "gt", *fixed, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=module_environment(),
            text=True,
            start_new_session=True,  # Ctrl-C is meant for the client
        )
        os.register_at_fork(after_in_child=self._forget)
        try:
            self.id = self._submitted()
        except BaseException:
            self.stop()
            raise
        self.name = f"Slurm job {self.id}"
        self.log = folder / f"{self.id}.log"

    def _submitted(self) -> str:
        assert self._keeper.stdout is not None
        if not (line := self._keeper.stdout.readline().strip()):
            assert self._keeper.stderr is not None
            words = self._keeper.stderr.read().strip().removeprefix("sbatch: error: ")
            raise ConfigError(f"gt.launch.slurm: Slurm refused the job: {words}")
        return line

    # -- what Slurm says -----------------------------------------------------------------

    def _state(self) -> JobState:
        command = ["squeue", "--noheader", "--states=all", f"--jobs={self.id}", "--format=%T|%r|%N"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return JobState("")
        if words := answer.stdout.strip():
            return JobState(*words.split("|"))
        return JobState("FORGOTTEN" if "Invalid job id" in answer.stderr or not answer.stderr else "")

    def _end_reason(self, now: JobState) -> str:
        """Why the job has ended; empty if it has not."""
        if now.state in ("", *NOT_STARTED, *RUNNING):
            return ""
        if "TIMEOUT" in now.state or now.reason == "TimeLimit":
            return f"{self.name} reached its time limit ({self._time_limit})"
        if now.state.startswith("CANCELLED"):
            return f"{self.name} was cancelled"
        reason = f", {now.reason}" if now.reason not in ("", "None") else ""
        return f"{self.name} has ended ({now.state}{reason})"

    def explain(self, server_lost: bool) -> str:
        """Why workers are lost, if the job is the reason. If its server is lost, Slurm may still be about to know."""
        state = self._state()
        wait = server_lost or state.state == "COMPLETING"
        deadline = time.monotonic() + (END_REASON_TIMEOUT_S if wait else 0.0)
        while time.monotonic() < deadline and self._is_undecided(state):
            time.sleep(0.2)
            state = self._state()
        return self._end_reason(state)

    def _is_undecided(self, now: JobState) -> bool:
        """Whether Slurm will soon know more about a job whose processes have ended."""
        return now.state in ("", *RUNNING) or (now.state == "COMPLETING" and now.reason in ("", "None"))

    # -- waiting for it ------------------------------------------------------------------

    def wait_for_server(self, timeout: float) -> None:
        """Wait until the job runs and its server listens. Raises NoWorkers."""
        deadline = time.monotonic() + timeout
        while (server := read_meeting_file(any_meeting_file(self._folder, self.id))) is None:
            self.check()
            if time.monotonic() > deadline:
                raise NoWorkers(f"{self.name} was not ready after {timeout:g} s ({self._shown}); it is cancelled")
            time.sleep(0.1)
        self.address, self.keys = server.address, server.keys

    def check(self, joined: int = 0) -> bool:
        """Ask Slurm from time to time, and print what has changed. Raises NoWorkers if the job will never be ready."""
        now = time.monotonic()
        if now < self._checked + CHECK_S:
            return False
        self._checked, state = now, self._state()
        if reason := self._end_reason(state):
            raise NoWorkers(f"{reason} while it was starting. {self._log_end()}")
        if state.state in NOT_STARTED:
            self._show(f"waiting, {state.state.lower()} ({state.reason})")
        elif state.state in RUNNING:
            self._running_since = self._running_since or now
            self._show(f"runs on {state.nodes}; {joined} of {self.workers} workers have joined")
            self._check_tasks(now)
        return False

    def _check_tasks(self, now: float) -> None:
        if re.search(rf"^(srun: error: .*|.*{WORKER_ENDED}.*)$", self._log_text(), re.M):
            raise NoWorkers(f"{self.name}: a worker failed while it was starting. {self._log_end()}")
        if now > self._running_since + START_TIMEOUT_S:
            raise NoWorkers(f"{self.name}: {self._shown} after {START_TIMEOUT_S:g} s. {self._log_end()}")

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            progress(f"{self.name}: {text}")

    def _log_text(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def _log_end(self) -> str:
        lines = self._log_text().strip().splitlines()
        if not lines:
            return f"Its log, {self.log}, is empty"
        return f"Its log, {self.log}, ends with:" + "".join(f"\n  {line}" for line in lines[-LOG_LINES:])

    # -- the end -------------------------------------------------------------------------

    def _forget(self) -> None:
        """In a forked child: the job must not wait for its end too."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()

    def stop(self) -> None:
        """Cancel the job. May be called twice, and from any thread."""
        if not self._stopping.acquire(blocking=False):
            return
        keeper = self._keeper
        assert keeper.stdin is not None
        with contextlib.suppress(OSError):
            keeper.stdin.close()
        try:
            keeper.wait(COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it goes on without this process
            warn(f"{self.name} is not cancelled yet: Slurm has not answered for {COMMAND_TIMEOUT_S:g} s")
        finally:
            for stream in (keeper.stdout, keeper.stderr):
                if stream is not None:
                    stream.close()
            for path in self._folder.glob(f"{self.id}.0.*") if self.id else ():  # if the tasks were killed
                path.unlink(missing_ok=True)
