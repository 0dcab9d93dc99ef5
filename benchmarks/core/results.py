"""One file per run, valid JSON at every moment; ``result.schema.json`` describes its contents.

The file exists from the first step on and each step replaces it as a whole: an interrupted run leaves everything that
was measured. An existing name is never overwritten, and a value in a record never changes.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.core import verdict
from benchmarks.core.environment import utc_after, utc_now
from benchmarks.core.ranks import Problem

VERSION = "1.0"
SCHEMA = pathlib.Path(__file__).with_name("result.schema.json")
STATUSES = ("running", "complete", "interrupted", "failed")


class Unwritable(Problem):
    """The folder for results cannot be written."""


class Record:
    """The record of a run, on disk from the start."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        suite: str,
        name: str,
        world_size: int,
        config: dict[str, Any],
        environment: dict[str, Any],
    ) -> None:
        started, self._begun = utc_now(), time.monotonic()
        self._lock = threading.RLock()
        self.data: dict[str, Any] = {
            "schema_version": VERSION,
            "suite": suite,
            "name": name,
            "world_size": world_size,
            "timestamp": started,
            "ended": None,
            "status": "running",
            "error": None,
            "config": config,
            "environment": environment,
            "results": {},
            "verdict": verdict.ended("running", None),
        }
        self.path = self._claim(writable(folder), f"{safe(name)}_{re.sub('[-:]', '', started)}")

    def _claim(self, folder: pathlib.Path, stem: str) -> pathlib.Path:
        """Reserve a new name: a hard link fails if the file exists, a rename would replace it."""
        for number in range(1, 10_000):
            path = folder / (f"{stem}.json" if number == 1 else f"{stem}_{number}.json")
            try:
                with _Temporary(folder, self._text()) as temporary:
                    os.link(temporary, path)
                return path
            except FileExistsError:
                continue
        raise Unwritable(f"{folder}: 10,000 results named {stem} are there already; give another --output-dir")

    def put(self, *keys: str, value: Any) -> None:
        """Add one value under ``results`` and write the file."""
        with self._lock:
            place = self.data["results"]
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            assert keys[-1] not in place, f"{keys} was put already; a record only grows"
            place[keys[-1]] = value
            self._write()

    def finish(self, status: str = "complete", error: str | None = None) -> None:
        """Close the record with the verdict over all its parts; only the first call has an effect."""
        assert status in STATUSES
        with self._lock:
            if self.data["ended"] is None:
                run = verdict.ended(status, error, self.data["environment"]["git"])
                closed = verdict.together([run, *verdicts(self.data["results"])])
                ended = utc_after(self.data["timestamp"], time.monotonic() - self._begun)
                self.data.update(status=status, error=error, ended=ended, verdict=closed)
                self._write()

    def _text(self) -> str:
        return json.dumps(finite(self.data), indent=1, allow_nan=False) + "\n"

    def _write(self) -> None:
        try:
            with _Temporary(self.path.parent, self._text()) as temporary:
                os.replace(temporary, self.path)
        except OSError as error:
            why = f"{self.path}: {error.strerror}; it holds what was measured before"
            raise Unwritable(f"{why}; give another folder with --output-dir") from error


class _Temporary:
    """A temporary file with this text beside its target, synced; it is removed afterwards if it still exists."""

    def __init__(self, folder: pathlib.Path, text: str) -> None:
        handle, self.name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        pathlib.Path(self.name).unlink(missing_ok=True)


def beside(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> pathlib.Path | None:
    """Write a file beside a record, for people; a failure is reported and does not affect the record."""
    try:
        write(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        print(f"not written: {path}: {error.strerror}", file=sys.stderr, flush=True)
        return None
    return path


def writable(folder: str | os.PathLike[str]) -> pathlib.Path:
    """The folder, created if needed; if it cannot be written, an error that says what to do."""
    path = pathlib.Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise Unwritable(f"cannot write to {path}: {error.strerror}; give another folder with --output-dir") from error


def safe(name: str) -> str:
    """The text with only letters, digits, dots, dashes and underscores: a valid file name everywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "benchmark"


def finite(value: Any) -> Any:
    """The same value with null for what JSON cannot express: NaN and the infinities."""
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def verdicts(value: Any) -> Iterator[dict[str, Any]]:
    """The outermost verdicts within a value: a verdict above others includes them."""
    if isinstance(value, dict) and "verdict" in value:
        yield value["verdict"]
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from verdicts(inner)


def problems(data: Any) -> list[str] | None:
    """The violations of the schema: path and message; None if ``jsonschema`` is not installed."""
    try:
        validation = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        return None
    validator = validation.Draft202012Validator(json.loads(SCHEMA.read_text()))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(data)]


def _number(text: str) -> int | float:
    """No record has NaN, an infinity, or what no float can hold: no comparison with it says anything."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return value if {*text} & {*".eE"} else int(text)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record from its file; ``ValueError`` says what is wrong with the file."""
    try:
        text = pathlib.Path(path).read_text()
        data = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON of a record ({error})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version is None:
        raise ValueError(f"{path}: no result of these suites: it has no schema_version")
    if str(version).split(".")[0] != VERSION.split(".")[0]:
        raise ValueError(f"{path}: schema_version {version}; this reads {VERSION}: use the version that wrote it")
    wrong = problems(data)
    if wrong:
        raise ValueError(f"{path}: {wrong[0]}")
    return data
