"""The records of files and folders, and the machines they were made on."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.core import audit, results
from benchmarks.core.audit import MALFORMED
from benchmarks.core.formulas import GIB
from benchmarks.core.ranks import BadInput
from benchmarks.reports.figures import Figure, figures
from benchmarks.transformer import comparing

#: what one machine is: all of equal hardware, or each set of cards by itself
GROUPS = ("kind", "card")
#: characters in which a record has its version, which it begins with
HEAD = 100
#: what is checked instead of `audit.problems`, which it contains: the summary of this suite has figures of its own
CHECKS = {comparing.SUITE: comparing.follows}


@dataclass(frozen=True)
class Read:
    """A record and the file it came from."""

    path: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def suite(self) -> str:
        return str(self.data["suite"])

    @property
    def results(self) -> dict[str, Any]:
        return dict(self.data["results"])

    @cached_property
    def figures(self) -> list[Figure]:
        """None of a record of which a part is not as expected; `wrong` says so."""
        return self._figures[0]

    @cached_property
    def _figures(self) -> tuple[list[Figure], list[str]]:
        """And why there are none."""
        try:
            return figures(self.results), []
        except MALFORMED as error:
            return [], [_malformed(error)]

    @cached_property
    def wrong(self) -> list[str]:
        """What does not follow from the samples."""
        try:
            return [*self._figures[1], *CHECKS.get(self.suite, audit.problems)(self.data)]
        except MALFORMED as error:
            return [_malformed(error)]

    @property
    def valid(self) -> bool:
        return bool(self.data["verdict"]["valid"]) and not self.wrong

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.data["config"])

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self.data["environment"])

    @property
    def timestamp(self) -> str:
        return str(self.data["timestamp"])

    @cached_property
    def device(self) -> str:
        """The GPU's name, otherwise the CPU's. Some suites record only ``cuda`` or ``cpu`` in their configuration."""
        environment = self.environment
        cards = {str(gpu["name"]) for gpu in environment["gpus"]}
        on_gpu = str(self.config["device"]).lower() not in ("cpu", str(environment["cpu"]["model"]).lower())
        return ", ".join(sorted(cards)) if cards and on_gpu else str(environment["cpu"]["model"])

    @property
    def cards(self) -> tuple[str, ...]:
        return tuple(sorted(str(gpu["uuid"]) for gpu in self.environment["gpus"]))

    @property
    def gpus(self) -> int:
        """The GPUs that were used; the ranks on a machine without any."""
        return max(1, int(self.data["world_size"]) // max(1, int(self.config.get("ranks_per_gpu") or 1)))

    def machine(self, group: str = "kind") -> tuple[Any, ...]:
        """Two records of one machine have the same."""
        environment = self.environment
        cpu, gpus = environment["cpu"], environment["gpus"]
        kind = (tuple(sorted(str(gpu["name"]) for gpu in gpus)), str(cpu["model"]), cpu["cores"])
        hosts = tuple(sorted({str(rank["host"]) for rank in environment.get("ranks") or ()}))
        return kind if group == "kind" else (*kind, self.cards or hosts)


def _malformed(error: Exception) -> str:
    return f"a part of the record is not as expected: {type(error).__name__}: {error}"


def machine_name(record: Read) -> str:
    """A name for people: ``8 x NVIDIA H200``, or the CPU with its cores."""
    environment = record.environment
    cpu, names = environment["cpu"], [str(gpu["name"]) for gpu in environment["gpus"]]
    if names:
        counts = {name: names.count(name) for name in sorted(set(names))}
        return ", ".join(f"{count} x {name}" for name, count in counts.items())
    return f"{cpu['model']}, {cpu['cores']} cores, {cpu['memory_bytes'] / GIB:.0f} GiB"


def read(path: Path) -> Read:
    """``ValueError`` says why the file is no record."""
    try:
        return Read(path, results.load(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def gather(paths: Sequence[Path]) -> tuple[list[Read], list[str]]:
    """The records of files and folders by time, and why other files of folders are left out.

    A file that is named must be a record; one that is given twice is read once. So is a copy: it is no other run, and
    copies would make the interval between runs as narrow as anyone likes.
    """
    records: dict[str, Read] = {}
    known: set[str] = set()
    left_out = []
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder")
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            if (real := os.path.realpath(file)) in known:
                continue
            known.add(real)
            try:
                record = read(file)
            except ValueError as error:
                if not path.is_dir():
                    raise BadInput(str(error)) from error
                left_out.append(str(error))
                continue
            key = audit.origin(record.data) if record.results else real
            first = records.setdefault(key, record)
            if first is not record:
                # an edited copy does not replace the record it was made from
                records[key], copy = (record, first) if first.wrong and not record.wrong else (first, record)
                left_out.append(f"{copy.path}: a copy of {records[key].path}, with the same samples")
    left_out += _below([path for path in paths if path.is_dir()], known)
    if not records:
        raise BadInput("\n".join([f"no record in {', '.join(map(str, paths))}", *left_out]))
    return sorted(records.values(), key=lambda record: (record.timestamp, record.name)), left_out


def _below(folders: Sequence[Path], known: Container[str]) -> Iterator[str]:
    """A line for each folder with records in folders of it, which are not read unless they are named."""
    for folder in folders:
        files = [file for file in folder.glob("*/**/*.json") if os.path.realpath(file) not in known]
        count = sum(map(_looks_like_record, files))
        if count:
            yield f"{count} record{'s' if count > 1 else ''} in folders of {folder}: name these folders too"


def _looks_like_record(file: Path) -> bool:
    try:
        with open(file, errors="replace") as text:
            return "schema_version" in text.read(HEAD)
    except OSError:
        return False


def by_machine(records: Sequence[Read], group: str = "kind") -> list[list[Read]]:
    """The records of each machine, in the order of its first one."""
    machines: dict[tuple[Any, ...], list[Read]] = {}
    for record in records:
        machines.setdefault(record.machine(group), []).append(record)
    return list(machines.values())
