"""Reports about repeated steps, the size of messages to workers, and the example that shows both."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest

import gt
from gt.client.tensor.random_state import restored
from gt.dispatcher import batching
from gt.dispatcher.actions import SendAll, SendMessage
from gt.errors import ConfigError
from gt.testing import Cluster
from gt.wire.messages import Execute
from gt.wire.words import FETCH
from gt.worker.hot.levels import Levels
from gt.worker.replay import MAX_ANNOUNCED_REASONS
from tests.support.processes import LONG, ROOT, Process, environment, script
from tests.test_templates import loop, outcome

# -- gt.debug.print_hot_paths --------------------------------------------------------------

LOOP = """
    model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 4))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    x = gt.rand(16, 8)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    loss.item()
"""


def test_a_loop_is_hot(system):
    client = system.client(
        LOOP
        + """
    stats = gt.debug.get_worker_stats()["worker 0"]
    say("hot", stats["hot_instructions"] > stats["total_instructions"] // 2, stats["unique_sequences"] > 0)
    gt.debug.print_hot_paths()
    """
    )
    assert client.end() == 0, client.output
    assert "hot True True" in client.output
    first = next(line for line in client.lines if line.startswith("worker 0 (cpu, numpy):"))
    assert re.search(r"[\d,]+ instructions, [\d,]+ of them \(\d+\.\d%\) hot; fragments: [1-9]", first)
    at = client.lines.index(first) + 1
    assert client.lines[at].split() == ["fragment", "length", "runs", "level", "compiling", "saved", "what"]
    number, length, runs, level, compiling, saved, *what = client.lines[at + 1].split()
    assert re.fullmatch(r"\d+\.\d", number)
    assert int(length) > 3
    assert int(runs) >= 10
    assert (level, compiling, saved) == ("template", "-", "-")
    assert what[0].rstrip(",") == "linear"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The cache of compiled code, shared by the tests of this file."""
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.mark.long
def test_a_compiled_loop_says_so(stack, folder):
    process = script(
        "import gt\n" + LOOP.replace("\n    ", "\n") + "gt.debug.print_hot_paths()\n",
        stack=stack,
        GT_COMPILE="1",
        GT_DEBUG_COMPILE="1",
        GT_CACHE_DIR=folder,
        CUDA_VISIBLE_DEVICES="",
    )
    assert process.end(4 * LONG) == 0, process.output
    rows = [line.split() for line in process.lines if re.match(r"  \d+\.\d ", line)]
    assert any(row[3] == "compiled" and row[5] == "s" for row in rows), process.output
    assert re.search(r"^\[gt compile .*compiled in", process.output, re.M), process.output


#: runs steps until compilation of every hot section was tried; two fragments repeat
UNTIL_TRIED = """
import time
import gt

x, w = gt.full((8, 8), 0.5), gt.full((8, 8), 0.25)
limit, tried = time.monotonic() + 240, False
while not tried and time.monotonic() < limit:
    for _ in range(20):
        y = gt.relu(x @ w - 0.5) * 0.5
        assert y.sum().item() == 16.0
        assert (y.exp() + 1).log().sum().item() > 0
    pieces = gt.debug.get_worker_stats()["compilation_stats"].values()
    tried = len(pieces) >= 2 * len(gt.workers()) and all(p["reasons"] for p in pieces)
print("tried" if tried else pieces)
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_the_reason_for_not_compiling_is_reported_once(workers, tmp_path):
    """One line in all, for several workers and several sections; the output of the local server is not shown."""
    program = UNTIL_TRIED.replace("\nx, w", f"\ngt.gpu_workers({workers})\ngt.auto_shard({workers > 1})\nx, w")
    variables = {
        "CXX": "/nonexistent",
        "GT_AUTO_COMPILE": "1",
        "GT_CACHE_DIR": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment(**variables), capture_output=True, text=True, check=True
    )
    assert process.stdout == "tried\n"
    # a busy machine may take longer to start than a wait is silent
    (line,) = [line for line in process.stderr.splitlines() if not line.startswith("[gt] waiting for")]
    assert re.fullmatch(r"\[gt\] a section of \d+ instructions \(.*\) is not compiled: .*/nonexistent.*", line)


def test_a_client_gets_notices_of_its_own_fragments(capfd, monkeypatch):
    """Only the client that runs them gets notices, of the first few reasons; the statistics hold all."""

    def broken(program, inputs, kept):
        raise RuntimeError(f"no room for {len(program.section.calls)}")

    monkeypatch.setattr("gt.worker.hot.compiler.build", broken)
    cluster = Cluster()
    (worker,) = cluster.workers.values()
    worker.replayer.levels = Levels(worker.engine, "all")
    with cluster.client():
        for length in range(12, 18):
            for _ in range(4):
                x = gt.ones(4)
                for _ in range(length):
                    x = x * 0.5 + 1
                assert x.sum().item() == pytest.approx(8, rel=1e-3)
    with cluster.client():  # who runs nothing twice hears nothing
        assert gt.ones(3).sum().item() == 3
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) == MAX_ANNOUNCED_REASONS
    assert all("is not compiled: no room for" in line for line in lines)
    assert not worker.replayer.levels.notices


def test_no_hot_instruction_is_reported_too():
    with Cluster(backend="numpy").client():
        gt.ones(2).numpy()
        output = io.StringIO()
        gt.debug.print_hot_paths(output)
        assert output.getvalue() == "worker 0 (cpu, numpy): 1 instructions, 0 of them (0.0%) hot; fragments: 0\n"


def test_a_reason_stands_below_its_fragment(monkeypatch):
    piece = {"length": 3, "runs": 9, "level": "graph", "compile_seconds": 1.5, "saved_seconds": 0.25}
    stats = {"total_instructions": 30, "hot_instructions": 27, "unique_sequences": 1, "backend": "torch"}
    named = {"fragment 7.0: 3 instructions (exp, sum, add)": {**piece, "reasons": ["not faster"]}}
    worker_stats = {"worker 0": {**stats, "device": "cuda:0", "compilation_stats": named}}
    monkeypatch.setattr(gt.debug, "_stats_of_workers", lambda: worker_stats)
    output = io.StringIO()
    gt.debug.print_hot_paths(output)
    assert output.getvalue().splitlines() == [
        "worker 0 (cuda:0, torch): 30 instructions, 27 of them (90.0%) hot; fragments: 1",
        "  fragment  length  runs  level  compiling   saved  what",
        "  7.0            3     9  graph     1.50 s  0.25 s  exp, sum, add",
        "      not faster",
    ]


def test_totals_are_sums_over_the_workers():
    with Cluster(workers=2, backend="numpy").client():
        gt.auto_shard()
        for _ in range(4):
            x = gt.ones(1000, 8)
            for _ in range(8):
                x = x * 0.5 + 1
            assert x.sum().item() > 0
        stats = gt.debug.get_worker_stats()
    workers = [stats["worker 0"], stats["worker 1"]]
    for key in ("total_instructions", "hot_instructions", "unique_sequences"):
        assert stats[key] == sum(worker[key] for worker in workers) > 0
    sections = {f"worker {i} {name}": piece for i in (0, 1) for name, piece in workers[i]["compilation_stats"].items()}
    assert stats["compilation_stats"] == sections
    assert {name[:9] for name in sections} == {"worker 0 ", "worker 1 "}


# -- GT_WORKER_BATCH_SIZE ------------------------------------------------------------------


class Counting(Cluster):
    """Keeps the words of each message to a worker."""

    def __init__(self, workers: int, batch: int | None) -> None:
        self.streams: list[list[int]] = []
        super().__init__(workers=workers)
        self.dispatcher.delivery.batch_size = batch

    def _act(self, actions):
        self.streams += [
            a.message.stream for a in actions if isinstance(a, SendMessage | SendAll) and _is_words(a.message)
        ]
        super()._act(actions)


def _is_words(message):
    return isinstance(message, Execute) and message.stream


def run(workers: int, batch: int | None, seed: int) -> tuple[list[bytes], Counting]:
    cluster = Counting(workers, batch)
    try:
        with restored(None), cluster.client():
            if workers > 1:
                gt.auto_shard()
            *_, state = loop(seed)
            return outcome(state), cluster
    finally:
        gt.auto_shard(False)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_messages_of_a_size_change_nothing_else(workers, batch):
    for seed in range(4):
        values, cluster = run(workers, batch, seed)
        expected, unbounded = run(workers, None, seed)
        assert values == expected
        if batch < 10:
            assert len(cluster.streams) > len(unbounded.streams)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_no_message_has_more_instructions(batch):
    cluster = Counting(1, batch)
    with cluster.client() as session:
        session.outbox.templates.enabled = False
        x = y = gt.ones(3)
        for _ in range(10):
            y = y + x
        assert y.tolist() == [11.0] * 3
        widths = {code: shape.width for code, shape in session.signatures.by_code.items()} | {FETCH: 3}
    counts = [instructions(stream, widths) for stream in cluster.streams]
    assert max(counts) == batch
    assert sum(counts) == 12  # one that makes x, ten that add, and the read


def instructions(stream, widths):
    i = count = 0
    while i < len(stream):
        count += stream[i] >= 0
        i += 1 if stream[i] < 0 else widths[stream[i]]
    return count


def test_a_fragment_counts_as_one():
    cluster = Counting(1, 1)
    with cluster.client():
        x = gt.ones(3)
        for _ in range(6):
            y = x
            for k in range(7):
                y = (y + k).relu()
            assert y.tolist() == [22.0] * 3
    # from its second sight on, its one word and the read: two messages
    assert [len(stream) for stream in cluster.streams[-2:]] == [len(stream) for stream in cluster.streams[-4:-2]]


@pytest.mark.parametrize(("text", "size"), [("", None), (" ", None), ("1", 1), (" 64 ", 64)])
def test_a_size_is_a_number(text, size):
    assert batching.parse_batch_size(text) == size


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "1e3", "²"])
def test_no_other_size_is_taken(text):
    with pytest.raises(ConfigError, match=r"GT_WORKER_BATCH_SIZE=.*must be a whole number, 1 or more"):
        batching.parse_batch_size(text)


def test_a_bad_size_is_reported_at_the_start(stack):
    process = script("import gt\ngt.ones(2).numpy()", stack=stack, GT_WORKER_BATCH_SIZE="many", GT_BACKEND="numpy")
    assert process.end() == 1
    assert "GT_WORKER_BATCH_SIZE=many: must be a whole number, 1 or more" in process.output


def test_the_reason_of_a_server_that_ends_while_the_client_connects(stack):
    """The connection is lost before the process has ended: the client waits for its last words."""
    program = """
        import gt
        from gt.client.stream import connect

        def lost(*_):
            raise gt.errors.ConnectionLost("broken pipe")

        connect.open_session, connect.SERVER_END_S = lost, 60
        gt.ones(2)
    """
    process = script(program, stack=stack, GT_WORKER_BATCH_SIZE="many", GT_BACKEND="numpy")
    assert process.end() == 1
    assert "the local server ended (exit code 1): gt.server: GT_WORKER_BATCH_SIZE=many" in process.output


def test_the_size_is_read_by_the_server(stack):
    process = script(
        "import gt\n" + LOOP.replace("\n    ", "\n"), stack=stack, GT_WORKER_BATCH_SIZE="1", GT_BACKEND="numpy"
    )
    assert process.end() == 0, process.output


# -- the example ---------------------------------------------------------------------------


@pytest.mark.long
def test_the_demo_of_compilation(folder):
    environment = {"GT_CACHE_DIR": folder, "CUDA_VISIBLE_DEVICES": ""}
    process = Process(str(ROOT / "examples" / "compile_demo.py"), "--patience", "3", **environment)
    try:
        assert process.end(4 * LONG) == 0, process.output
    finally:
        process.close()
    rows = [line.split() for line in process.lines if " ms " in line]
    assert len(rows) == 3, process.output
    losses = [float(row[-1]) for row in rows]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-2)
    assert any(line.startswith("worker 0 (cpu, torch)") for line in process.lines)
