"""How fast this machine trains an encoder-decoder Transformer: ``python benchmark.py --help``.

Alone it uses one GPU, or the CPU; ``torchrun --nproc_per_node=8 benchmark.py`` uses eight. `run_benchmark.sh` counts
the GPUs. GT is one process that starts its workers itself, ``BENCH_PROCESSES`` of them. The result is
``results/bench_{GPU}_{N}gpu_{time}.json``, written step by step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # modules of the repository are imported from its root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from benchmarks.core import environment, outliers, plots, ranks, results, tables
from benchmarks.core.formulas import GIB
from benchmarks.core.progress import Progress
from benchmarks.transformer import dataset, engine_gt, fitting, model
from benchmarks.transformer.engines import ENGINES
from benchmarks.transformer.loader import Batches, Source, plan
from benchmarks.transformer.measuring import Run
from benchmarks.transformer.options import Config, parser, resolve
from benchmarks.transformer.problems import BadInput, NoDisk

SUITE = "transformer"


def main(guard: ranks.Guard) -> int:
    try:
        return _main(guard)
    except results.Unwritable as error:
        raise NoDisk(str(error).replace("--output-dir", "--results-dir")) from error


def _main(guard: ranks.Guard) -> int:
    config = options()
    world = engine_gt.world() if config.engine == "gt" else ranks.start()
    guard.world = world
    spec = _spec(config)
    chosen = None
    if config.target_vram is not None:
        chosen = fitting.choose_batch(config, world, ENGINES[config.engine], spec)
        config = dataclasses.replace(config, batch_size=chosen["ran"])
    _say(config, world)
    name = environment.device_name(world.device)
    record = _record(config, world, name) if world.first else None
    guard.close = _closing(record)
    if record and chosen:
        record.put("target_vram", value=chosen)
    with fitting.fitting(config.batch_size):
        summary = _run(config, world, name, record, spec)
    if record:
        record.finish()
        show(record, summary)
    return ranks.DONE


def options(arguments: list[str] | None = None) -> Config:
    """Mistakes in the command line: every rank finds the same ones, the first rank prints them."""
    try:
        with contextlib.redirect_stderr(io.StringIO() if ranks.rank() else sys.stderr):
            parsed = parser().parse_args(arguments)
    except SystemExit as error:
        if ranks.rank() and error.code:
            raise BadInput("the first rank says which") from error
        raise
    config, size = resolve(parsed, torch.cuda.is_available()), int(os.environ.get("WORLD_SIZE", 1))
    if config.engine == "gt":
        engine_gt.check(config, size)
        size = engine_gt.workers()
    least = size * (1 if config.target_vram is not None else config.batch_size)
    if config.num_samples < least:
        raise BadInput(
            f"--num-samples {config.num_samples} is less than one batch of {least // size} on each of {size} rank(s): "
            f"give {least} or more, or a smaller --batch-size"
        )
    return config


def _spec(config: Config) -> dataset.Spec:
    s = config.sizes
    return dataset.spec_of(config.num_samples, s.seq_len, s.vocab_size, config.seed, config.num_shards)


def _say(config: Config, world: ranks.World) -> None:
    s = config.sizes
    world.say(
        f"{model.parameters(s):,} parameters, {model.training_flops(s) / 1e9:,.3g} GFLOP a sample to train on; "
        f"{config.engine}, {config.precision}, {world.size} x {config.batch_size} samples a step, "
        f"{config.num_samples:,} samples an epoch from {'disk' if config.data_dir else 'memory'}"
    )
    if world.device.type == "cpu":
        world.say("no GPU found: runs on the CPU, small by default; the figures say nothing about a GPU")


def file_stem(device: torch.device, name: str, size: int) -> str:
    """``bench_H200_8gpu``, or ``bench_CPU_2ranks`` without a GPU."""
    if device.type == "cpu":
        return f"bench_CPU_{size}rank{'s' * (size > 1)}"
    return f"bench_{results.safe(name.removeprefix('NVIDIA '))}_{size}gpu"


def _record(config: Config, world: ranks.World, name: str) -> results.Record:
    return results.Record(
        config.results_dir,
        suite=SUITE,
        name=file_stem(world.device, name, world.size),
        world_size=world.size,
        config=described(config, world, name),
        environment=environment.record({"weights": config.seed, "tokens": config.seed})
        | {"ranks": outliers.described(world.members[: world.size])},
    )


def described(config: Config, world: ranks.World, name: str) -> dict[str, Any]:
    """The configuration without folders, which differ between machines."""
    excluded = ("sizes", "data_dir", "results_dir", "target_vram")
    plain = {k: v for k, v in dataclasses.asdict(config).items() if k not in excluded}
    return {
        "device": name,
        **dataclasses.asdict(config.sizes),
        **plain,
        "num_shards": config.num_shards if config.data_dir else None,
        "global_batch_size": config.batch_size * world.size,
        "data": "disk" if config.data_dir else "memory",
        "backend": world.backend,
        "nodes": world.nodes(),
    }


def _closing(record: results.Record | None) -> Any:
    def close(status: str, why: str) -> None:
        dataset.discard()
        if record:
            record.finish(status, why)

    return close


def _run(config: Config, world: ranks.World, name: str, record: results.Record | None, spec: dataset.Spec) -> Any:
    source = _source(config, world, record, spec)
    engine = ENGINES[config.engine](config, world)
    samples, batch, tail = config.num_samples, config.batch_size, not config.compile
    spans = plan(samples, batch, world.rank, world.size, tail, world.ranks_led)
    run = Run(config, world, name, engine, Batches(source, spans, engine.stage), record)
    flops = model.forward_flops(config.sizes), model.training_flops(config.sizes)
    keys = ("parameters", "forward_flops_per_sample", "training_flops_per_sample")
    run.put("model", value=dict(zip(keys, (engine.parameters, *flops), strict=True)))
    try:
        return run.all()
    finally:
        engine.close()
        source.close()


def _source(config: Config, world: ranks.World, record: results.Record | None, spec: dataset.Spec) -> Source:
    data: dict[str, Any] = {"samples": spec.num_samples, "bytes": spec.bytes, "dtype": spec.dtype}
    if config.data_dir is None:
        if record:
            record.put("data", value={"source": "memory", **data})
        return dataset.InMemory(spec)
    # the first rank prepares the folder; on a machine that does not see it, that machine's first rank does
    data |= _prepared(config.data_dir, world, spec, world.first)
    _prepared(config.data_dir, world, spec, world.local_rank == 0 and not world.first)
    if record:
        world.say("data: {reused} shard(s) reused, {written} written, {damaged} of them damaged before".format(**data))
        record.put("data", value={"source": "disk", **data})
    return dataset.OnDisk(config.data_dir, spec)


def _prepared(folder: Path, world: ranks.World, spec: dataset.Spec, is_preparer: bool) -> dict[str, Any]:
    """Report a problem of one rank to all ranks."""
    report, problem = {}, None
    try:
        report = dataset.prepare(folder, spec, _bar) if is_preparer else {}
    except NoDisk as error:
        problem = str(error)
    for message in world.gather(problem):
        if message:
            raise NoDisk(message)
    return report


def _bar(shards: list[int], label: str) -> Any:
    with Progress(label, len(shards), rank=ranks.rank()) as bar:
        for shard in shards:
            yield shard
            bar.step(dataset.shard_name(shard))


# -- for people ----------------------------------------------------------------------------


def show(record: results.Record, summary: dict[str, Any]) -> None:
    epochs = record.data["results"]["epochs"]
    columns = ["epoch", "wall s", "samples/s", "tokens/s", "step p50 ms", "p95 ms", "waiting for data", "loss", "I/O"]
    rows = [_row(number, e) for number, e in epochs.items()]
    words = [*_lines(summary), *tables.verdict_lines(record.data["verdict"])]
    tables.show(record.data["name"], columns, rows)
    print("\n".join(words))
    table = tables.render(record.data["name"], columns, rows)
    results.beside(record.path.with_suffix(".txt"), lambda to: to.write_text("\n".join([table, *words, ""])))
    lines = {f"epoch {n}": _line(e["timing"]) for n, e in epochs.items()}
    plots.lines(record.path.with_suffix(".png"), record.path.stem, "step", "step time (ms)", lines)
    print(f"result: {record.path}", flush=True)


def _line(timing: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Step times by the number of their last step."""
    samples, per = timing["samples_s"], timing["steps_per_sample"]
    return [per * (n + 1) for n in range(len(samples))], [seconds * 1e3 for seconds in samples]


def _row(number: str, e: dict[str, Any]) -> list[Any]:
    timing = e["timing"]
    return [
        number, e["wall_s"], e["samples_per_s"], e["tokens_per_s"], timing["p50_s"] * 1e3, timing["p95_s"] * 1e3,
        f"{e['data_wait_share']:.1%}", e["losses"][-1], e["io"]["label"] if e["io"] else "memory",
    ]  # fmt: skip


def _lines(summary: dict[str, Any]) -> list[str]:
    used, cell = summary["mfu"], tables.cell
    peak = None if summary["peak_memory_bytes"] is None else summary["peak_memory_bytes"] / GIB
    share = "–" if used["mfu"] is None else f"{used['mfu']:.1%}"
    bound = used["denominator_flops_per_s"]
    return [
        f"throughput: {cell(summary['samples_per_s'])} samples/s, {cell(summary['tokens_per_s'])} tokens/s, "
        f"{cell(summary['samples_per_s_per_rank'])} samples/s a rank",
        f"MFU: {share} = {used['numerator_flops_per_s'] / 1e12:,.3f} of "
        f"{'–' if bound is None else f'{bound / 1e12:,.1f}'} TFLOP/s ({used['source']})",
        f"peak memory: {cell(peak)} GiB on the worst rank; "
        f"kernel resident {cell(summary['kernel_resident_percent'])} %; "
        f"{cell(summary['joules_per_sample'])} J a sample; {summary['skipped_steps']} step(s) skipped",
    ]


if __name__ == "__main__":
    ranks.run(main)
