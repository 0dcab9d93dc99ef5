"""Which records are of the same work, and which of those are runs of the same thing again."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.core.audit import NOISE
from benchmarks.reports.reading import Read
from benchmarks.transformer import comparing

#: keys of a configuration that say nothing about the work: the machine, and where things are
MACHINE = {"device", "device_type", "backend", "nodes", "ranks_per_gpu", "memory_budget_bytes"}
#: ways of doing the same work: of different variants, in one table
WAYS = {"cuda_graphs"}
#: suites whose results are one part for each program
PROGRAMS = {"compilation_benchmark", "pytorch_baseline"}
#: suite -> the keys of its configuration that must be equal; in other suites all but those above
EQUAL = {comparing.SUITE: comparing.EQUAL}


def work(record: Read) -> str:
    """Figures of two records may be compared if this is equal."""
    config = record.config
    keys = EQUAL.get(record.suite, sorted(set(config) - MACHINE - NOISE - WAYS))
    return json.dumps([record.suite, _chosen(record, keys), _programs(record)], sort_keys=True)


def variant(record: Read) -> str:
    """Equal in repeated runs on one machine, beside the work: what else was chosen, and the number of ranks."""
    others = _chosen(record, [key for key in record.config if key not in NOISE | {"device"}])
    return json.dumps([record.data["world_size"], others], sort_keys=True)


def _chosen(record: Read, keys: Sequence[str]) -> dict[str, Any]:
    """An option that was not used is one that older records do not have."""
    return {key: value for key in keys if (value := _value_of(record, key)) is not None}


def _value_of(record: Read, key: str) -> Any:
    value = record.config.get(key)
    return None if value is False else value


def _programs(record: Read) -> list[str]:
    """What the suite was told to run, where its configuration does not say so."""
    return sorted(record.results) if record.suite in PROGRAMS else []


def by_work(records: Sequence[Read]) -> list[list[Read]]:
    works: dict[str, list[Read]] = {}
    for record in records:
        works.setdefault(work(record), []).append(record)
    return list(works.values())


def differing(records: Sequence[Read]) -> list[str]:
    """The keys of the configuration in which records differ."""
    keys = sorted({key for record in records for key in record.config} - NOISE - {"device"})
    texts = lambda key: {json.dumps(_value_of(record, key), sort_keys=True) for record in records}
    return [key for key in keys if len(texts(key)) > 1]


def description(record: Read, keys: Sequence[str], ranks: bool) -> str:
    """The values of these keys, for a label: ``engine gt, 8 ranks``."""
    words = [f"{key.replace('_', ' ')} {_value(record.config.get(key))}" for key in keys]
    count = record.data["world_size"]
    return ", ".join([*words, *([f"{count} rank{'s' if count != 1 else ''}"] if ranks else [])])


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def common_title(records: Sequence[Read]) -> str:
    """The title of records of one work, without the choices in which they differ."""
    return title(records[0], differing(records))


def title(record: Read, without: Collection[str] = ()) -> str:
    """The suite and the values of its configuration that people look for."""
    config = {key: value for key, value in record.config.items() if key not in without}
    model, only = config.get("model"), config.get("benchmarks") or []
    trains = not only or bool({*only} - {"comm", "replay"})
    words = [
        str(config["part"]).replace("_", " ") if "part" in config else None,
        only[0] if len(only) == 1 else None,
        config.get("replay"),
        *_programs(record),
        model["name"] if isinstance(model, dict) and trains else None,
        f"d_model {config['d_model']}" if "d_model" in config else None,
        f"{config['num_encoder_layers']}+{config['num_decoder_layers']} layers"
        if {"num_encoder_layers", "num_decoder_layers"} <= set(config)
        else None,
        config.get("engine"),
        (config.get("precision") or config.get("dtype")) if only != ["replay"] else None,
        f"batch {config['batch_size']}" if "batch_size" in config and trains else None,
        "CUDA graphs" if config.get("cuda_graphs") else None,
        f"{record.data['world_size']} ranks" if record.data["world_size"] > 1 else None,
    ]
    return ", ".join([record.suite, *(str(word) for word in words if word)])
