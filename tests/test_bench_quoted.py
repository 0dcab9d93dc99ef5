"""Every figure that the README of the distributed suite quotes is that of the record that it names."""

from __future__ import annotations

import functools
import re

from benchmarks.core import results
from benchmarks.core.formulas import GIB
from benchmarks.distributed import operations, recording
from tests.support.launches import FOLDER

README = (FOLDER / "README.md").read_text()
NAMES = (*operations.COLLECTIVES, *operations.TRANSFERS)


@functools.cache
def kept(folder=""):
    """The records that the README names, in its order: those directly in the folders of machines, or in this one."""
    names = re.findall(rf"\(\.\./(results/\w+/{folder}\w+\.json)\)", README)
    return [results.load(FOLDER.parent / name) for name in names]


def test_the_figures_are_those_of_their_records():
    assert kept()
    for data in kept():
        for row in measured(data):
            assert row in README


def measured(data):
    """The lines of the README's tables of measured figures, from a record."""
    parts = data["results"]
    for name in [*operations.COLLECTIVES, *operations.TRANSFERS]:
        part = parts["communication"][name]
        if fit := part.get("fit"):
            last = part["rows"][-1]
            yield f"| {name} | {fit['alpha_s'] * 1e6:.0f} | {last['busbw_gb_per_s']:.3g} | {last['wrong_elements']} |"
    if data["config"]["device_type"] == "cuda" and "training" in parts:
        yield from measured_on_gpus(parts)
        return
    for engine in ("ddp", "fsdp") if "training" in parts else ():
        part = parts["training"][engine]
        wait, exposed = part["data_wait_share"], part["exposed"]["share_of_passes"]
        step = part["timing"]["p50_s"] * 1e3
        yield f"| {engine} | {part['samples_per_s']:.1f} | {step:.1f} | {wait:.1%} | {exposed:.1%} |"
    for mode, part in ((mode, parts.get("scaling", {}).get(mode)) for mode in ("weak", "strong")):
        for row in part["rows"][1:] if part else ():
            yield f"| {mode} | {row['ranks']} | {row['efficiency']:.1%} | {row['label']} |"


def measured_on_gpus(parts):
    for engine in ("ddp", "fsdp"):
        part, held = parts["training"][engine], parts["memory"][engine]["worst_rank"]["counted_bytes"]
        step, used, peak = part["timing"]["p50_s"] * 1e3, part["mfu"]["mfu"], part["peak_memory_bytes"] / GIB
        valid = "yes" if part["verdict"]["valid"] else "**no**"
        rates = f"{part['samples_per_s']:.1f} | {part['tokens_per_s']:,.0f} | {step:.1f}"
        yield f"| {engine} | {rates} | {used:.1%} | {part['joules_per_sample']:.2f} | {valid} |"
        stages = ("parameters", "gradients", "optimizer_state", "activations")
        yield f"| {engine} | {' | '.join(f'{held[name] / GIB:.2f}' for name in stages)} | {peak:.2f} |"
    largest = parts["memory"]["largest_batch"]
    fit = parts["memory"].get("batch_fit", largest)["fit"]
    *_, last = largest["tries"]
    yield f"{fit['intercept_bytes'] / GIB:.2f} GiB and {fit['bytes_per_sample'] / GIB:.3f} GiB a sample"
    most, predicted = f"ran, in {last['peak_bytes'] / GIB:.1f} GiB", f"{largest['predicted']} samples, which"
    yield f"{predicted} {most}" if largest["verified"] else f"{predicted} did not fit; {last['batch']} {most}"


# -- captured collectives ------------------------------------------------------------------


def sweeps():
    """Of 1 and of 2 ranks: the sweep as usual, and the captured one."""
    usual = [data for data in kept() if data["config"]["device_type"] == "cuda"]
    captured = kept("captured/")
    assert [data["config"]["cuda_graphs"] for data in (*usual, *captured)] == [False, False, True, True]
    return [tuple(data["results"]["communication"] for data in pair) for pair in zip(usual, captured, strict=True)]


def rows(sweep):
    """(operation, way, size) -> the row."""
    rows_by_key = {}
    for name in NAMES:
        for row in sweep[name].get("rows", ()):
            rows_by_key[name, row["buffers"], row["asked_bytes"]] = row
            other = {"in place": "out_of_place", "out of place": "in_place"}[row["buffers"]]
            if other in row:
                rows_by_key[name, other, row["asked_bytes"]] = row[other]
    return rows_by_key


def test_launches_of_captured_collectives():
    for name in NAMES:
        parts = [sweep[name] for pair in sweeps() for sweep in pair]
        cells = [f"{part['rows'][0]['launch_us']:.3g}" if "rows" in part else "–" for part in parts]
        assert f"| {name} | {' | '.join(cells)} |" in README


def test_the_range_of_launches():
    text = " ".join(README.split())
    ranges = []
    for usual, captured in (map(rows, pair) for pair in sweeps()):
        launches = [[side[key]["launch_us"] for key in usual.keys() & captured.keys()] for side in (captured, usual)]
        ranges += [f"{value:.3g}" for side in launches for value in (min(side), max(side))]
    words = "takes {} to {} us on one rank instead of {} to {}, and {} to {} us on two ranks instead of {} to {}."
    assert words.format(*ranges) in text


def test_single_captured_operations_and_how_they_vary():
    (usual, captured), (_, captured_on_two) = sweeps()
    single = [sweep["allreduce"]["rows"][0]["single_us"] for sweep in (captured, usual)]
    assert "takes {:.1f} us instead of {:.1f}".format(*single) in README
    assert f"CV up to {100 * max(row['timing']['cv'] for row in rows(captured).values()):.0f} %" in README
    assert not any(row["wrong_elements"] for sweep in (captured, captured_on_two) for row in rows(sweep).values())


# -- a replay ------------------------------------------------------------------------------


def test_times_of_a_replay():
    plain, captured, groups = (data["results"]["replay"] for data in kept("replay/") if "replay" in data["results"])
    assert [part["cuda_graphs"] for part in (plain, captured, groups)] == [False, True, True]
    for name, usual, step in (
        *((name, plain[name], captured[name]) for name in ("ddp", "fsdp")),
        ("x", None, groups["x"]),
    ):
        milliseconds = [f"{part['timing']['p50_s'] * 1e3:.3g}" if part else "–" for part in (usual, step)]
        assert f"| {name} | {step['collectives']} | {step['bytes']:,} | {' | '.join(milliseconds)} |" in README
        assert step["wrong_elements"] == 0


def test_the_recorded_steps_are_those_that_were_replayed():
    replays = {data["config"]["replay"]: data["results"].get("replay") for data in kept("replay/")}
    for name in ("step2.json", "groups.json"):
        path = FOLDER.parent / "results/h200/replay/recorded" / name
        for step, recorded in recording.read(str(path), 2)["steps"].items():
            assert len(recorded["collectives"]) == replays[name][step]["collectives"]
