"""Parallel training, each recipe a few lines of YAML: the same numbers as on one worker, and the moves it needs."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import gt
from gt import nn
from gt.testing import Cluster
from tests.support.processes import System
from tests.support.recipes import AUTO, Gpt, Mlp, Watched, configured, numbers, texts, train

#: torch's warning on a CPU that has no bfloat16 and emulates it
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")

DATA = """
data: {shard: {axis: 0}}
parameters: {match: "*", replicate: true}
"""
COLUMN_ROW = """
column: {match: ["*up.*", "*.q.*", "*.k.*", "*.v.*"], shard: {0: tp}}
row: {match: ["*down.weight", "*.out.weight"], shard: {1: tp}}
rest: {match: "*", replicate: true}
"""
TENSOR = "mesh: {tp: 2}\ndata: {replicate: true}" + COLUMN_ROW + "between: {output: replicate}"
SEQUENCE = "mesh: {tp: 2}\ndata: {replicate: true}" + COLUMN_ROW + "between: {output: {1: tp}}"
SHARDED = """
mesh: {dp: 2}
data: {shard: {0: dp}}
parameters: {match: "*", shard: {0: dp}}
"""
TWO_D = "mesh: {dp: 2, tp: 2}\ndata: {shard: {0: dp}}" + COLUMN_ROW + "between: {output: {0: dp}}"
STAGES = """
data: {workers: [0], replicate: true}
stage0: {workers: [0]}
stage1: {workers: [1]}
first: {match: ["letters*", "places*", "blocks.0.*"], workers: [0], replicate: true}
last: {match: "*", workers: [1], replicate: true}
"""
STAGES_OF_TWO = """
data: {shard: {axis: 0, workers: [0, 1]}}
stage0: {workers: [0, 1]}
stage1: {workers: [2, 3]}
first: {match: ["letters*", "places*", "blocks.0.*"], workers: [0, 1], replicate: true}
last: {match: "*", workers: [2, 3], replicate: true}
"""


class Training(NamedTuple):
    model: Callable[[], nn.Module]
    batches: Callable[[], Any]
    options: tuple[tuple[str, Any], ...] = ()
    #: how far losses may differ: the rounding of sums in another order
    within: float = 2e-6
    backend: str = "torch"


MLP, UNEVEN, LONG = Training(Mlp, numbers), Training(Mlp, lambda: numbers(13)), Training(Mlp, lambda: numbers(512))
DROPPED = Training(lambda: Mlp(dropout=0.3), lambda: numbers(13))
ON_NUMPY = Training(lambda: Mlp(dropout=0.3), lambda: numbers(13), backend="numpy")
GPT, CLIPPED = Training(Gpt, texts), Training(Gpt, texts, (("clip", 0.5),))
LONG_GPT = Training(Gpt, lambda: texts(200), (("clip", 0.5), ("steps", 5)))
#: with eight bits of mantissa, another order gives another sum
HALF = Training(Gpt, texts, (("clip", 0.5), ("bf16", True)), within=2e-3)

RECIPES = {
    "data parallel": (DATA, 2, MLP),
    "data parallel, 13 rows over 2": (DATA, 2, UNEVEN),
    "data parallel, 13 rows over 3": (DATA, 3, UNEVEN),
    "data parallel, dropout": (DATA, 3, DROPPED),
    "data parallel, numpy": (DATA, 3, ON_NUMPY),
    "data parallel, gpt": (DATA, 2, CLIPPED),
    "data parallel, gpt in bf16": (DATA, 2, HALF),
    "tensor parallel": (TENSOR, 2, MLP),
    "tensor parallel, gpt": (TENSOR, 2, CLIPPED),
    "tensor parallel, gpt in bf16": (TENSOR, 2, HALF),
    "sequence parallel, gpt": (SEQUENCE, 2, CLIPPED),
    "fully sharded": (SHARDED, 2, LONG),
    "fully sharded, 13 rows": (SHARDED, 2, DROPPED),
    "fully sharded, gpt": (SHARDED, 2, CLIPPED),
    "fully sharded, numpy": (SHARDED, 2, ON_NUMPY),
    "two-d": (TWO_D, 4, UNEVEN),
    "two-d, gpt": (TWO_D, 4, CLIPPED),
    "stages, gpt": (STAGES, 2, CLIPPED),
    "stages of two, gpt": (STAGES_OF_TWO, 4, CLIPPED),
    "auto": (AUTO, 2, LONG),
    "auto, gpt over 3": (AUTO, 3, LONG_GPT),
}

Result = tuple[list[float], dict[str, np.ndarray]]


def trained(training: Training, **more: Any) -> Result:
    """The losses, and the final parameters."""
    gt.manual_seed(0)
    model = training.model()
    losses = train(model, training.batches(), **dict(training.options), **more)
    return losses, {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


@functools.cache
def on_one(training: Training) -> Result:
    with Cluster(backend=training.backend).client():
        return trained(training)


def agree(ours: Result, training: Training) -> None:
    losses, parameters = on_one(training)
    assert ours[0] == pytest.approx(losses, abs=training.within)
    for name, value in parameters.items():
        np.testing.assert_allclose(ours[1][name], value, atol=20 * training.within, rtol=0, err_msg=name)


@pytest.fixture
def under(tmp_path: Any) -> Any:
    return functools.partial(configured, tmp_path / "recipe.yaml")


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_of_one_worker(name: str, under: Any) -> None:
    text, workers, training = RECIPES[name]
    with under(text), Cluster(workers, backend=training.backend).client():
        ours = trained(training)
    agree(ours, training)


# -- moves -------------------------------------------------------------------------------------


def in_a_step(text: str, workers: int, training: Training, under: Any) -> Watched:
    """The moves during the fifth step, and the bytes after it."""
    cluster = Cluster(workers)
    with under(text), cluster.client() as session:
        watched = Watched(cluster, session)
        trained(training, watched=watched)
    return watched


#: in addition to each recipe's own moves: the loss and the count of targets are two more numbers to add, and positions
#: come from worker 0
COLLECTIVES = {
    "data parallel": {"all_reduce": 6 + 2},
    "tensor parallel": {"all_reduce": 2},
    "auto": {"all_reduce": 6 + 2},
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_in_a_step(name: str, under: Any) -> None:
    assert in_a_step(*RECIPES[name], under).collectives == COLLECTIVES[name]


def test_tensor_parallel_moves_twice_a_half_block_each_way(under: Any) -> None:
    """Attention and MLP each end in a sum; so do their gradients. Nothing else moves, however large."""
    assert in_a_step(TENSOR, 2, GPT, under).collectives == {"all_reduce": 2 * 2 * 2, "exchange": 1}


def test_two_axes_have_the_moves_of_each_axis_alone(under: Any) -> None:
    """Along tp the sums of the blocks, along dp those of the gradients."""
    with Cluster().client():
        count = len(list(Gpt().parameters()))
    collectives = in_a_step(TWO_D, 4, GPT, under).collectives
    assert collectives == {"all_reduce": 2 * 2 * 2 + count + 2, "broadcast": 1}


def test_auto_shard_reduces_each_gradient_once(under: Any) -> None:
    with Cluster().client():
        count = len(list(Gpt().parameters()))
    assert in_a_step(AUTO, 2, LONG_GPT._replace(options=()), under).collectives == {"all_reduce": count + 2}


def forward(part: Callable[[Any, gt.Tensor], gt.Tensor], watched: Watched | None = None) -> gt.Tensor:
    """A part of a model, called once, with parameters and inputs in given layouts."""
    gt.manual_seed(0)
    model = Gpt()
    gt.signal.place(model)
    with gt.signal.context("data"):
        x = gt.tensor(np.random.default_rng(0).standard_normal((4, 12, 32)).astype(np.float32))
    if watched is not None:
        watched.begin()
    with gt.no_grad():
        return part(model.blocks[0], x)


def moved_by(part: Callable[[Any, gt.Tensor], gt.Tensor], text: str, under: Any) -> tuple[str, dict[str, int]]:
    """The layout of the result, and the moves until it was read."""
    with Cluster().client():
        alone = forward(part).numpy()
    cluster = Cluster(2)
    with under(text), cluster.client() as session:
        watched = Watched(cluster, session)
        result = forward(part, watched)
        layout = str(result.layout)
        np.testing.assert_allclose(result.numpy(), alone, atol=2e-6)
        watched.end()
    return layout, watched.collectives


def test_a_column_then_a_row_is_one_all_reduce(under: Any) -> None:
    """The sum is not needed before the read."""
    result = moved_by(lambda block, x: block.down(nn.functional.gelu(block.up(x))), TENSOR, under)
    assert result == ("P(sum) on workers 0, 1", {"all_reduce": 1})


def test_attention_cut_by_heads_is_one_all_reduce(under: Any) -> None:
    result = moved_by(lambda block, x: block.attention(x), TENSOR, under)
    assert result == ("P(sum) on workers 0, 1", {"all_reduce": 1})


def test_sequences_are_cut_between_the_tensor_parallel_parts(under: Any) -> None:
    """The sum is computed in blocks; each is normalized where it is, and gathered for the next part."""
    result = moved_by(lambda block, x: block(x), SEQUENCE, under)
    assert result == ("S(1) on workers 0, 1", {"all_gather": 2, "reduce_scatter": 2})


# -- memory ------------------------------------------------------------------------------------


class Deep(nn.Sequential):
    """Many layers, so that one of them is small."""

    def __init__(self) -> None:
        super().__init__(*(part for _ in range(12) for part in (nn.Linear(64, 64), nn.ReLU())))


def test_fully_sharded_is_held_by_halves(under: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, gradients, both states of AdamW: half of each, also during a step."""
    monkeypatch.setenv("GT_TEMPLATES", "0")  # a tensor created and freed within a fragment is never in the store
    training = Training(Deep, lambda: numbers(100, 64, 64), (("steps", 5),))
    one, two = in_a_step("", 1, training, under), in_a_step(SHARDED, 2, training, under)
    parameters = 4 * 12 * (64 * 64 + 64)
    assert one.bytes == pytest.approx([4 * parameters], rel=0.01)
    assert two.bytes == pytest.approx([2 * parameters] * 2, rel=0.01)
    layer = 4 * 64 * 64
    assert max(two.peaks) < one.peaks[0] / 2 + layer, (
        "gathered parameters are freed after use, and gradients are sharded at once"
    )


def test_gradients_and_states_have_the_layout_of_their_parameter(under: Any) -> None:
    with under(SHARDED), Cluster(2).client():
        model = Mlp()
        optimizer = gt.optim.AdamW(model.parameters())
        train(model, numbers(512), steps=2, make=lambda _: optimizer)
        for p in model.parameters():
            tensors = (p, p.grad, *(v for v in optimizer.state[p].values() if isinstance(v, gt.Tensor)))
            assert {str(x.layout) for x in tensors} == {"S(0) on workers 0, 1"}


# -- stages ------------------------------------------------------------------------------------


def test_stages_hand_on_activations_and_gradients_alone(under: Any) -> None:
    """x moves forward, its gradient back, and the targets to the loss; everything else runs where its operands are."""
    watched = in_a_step(STAGES, 2, GPT, under)
    assert watched.collectives == {"exchange": 3}
    with under(STAGES), Cluster(2).client():
        model = Gpt()
        with gt.signal.context("data"):
            ids = gt.zeros(2, 12, dtype=gt.int64)
        model(ids).sum().backward()
        for name, p in model.named_parameters():
            stage = 0 if name.startswith(("letters", "places", "blocks.0.")) else 1
            assert (str(p.layout), str(p.grad.layout)) == (f"worker {stage}", f"worker {stage}"), name


def test_a_norm_over_stages_is_one_number_from_each(under: Any) -> None:
    """The scale factor moves back too."""
    assert in_a_step(STAGES, 2, CLIPPED, under).collectives == {"exchange": 3 + 2}


def test_a_signal_moves_a_tensor_early(under: Any) -> None:
    cluster = Cluster(2)
    with under(STAGES), cluster.client() as session:
        watched = Watched(cluster, session)
        with gt.signal.context("stage0"):
            x = gt.ones(4, 4) + 1
        watched.begin()
        early = gt.signal.tensor(x, "stage1")
        assert (str(x.layout), str(early.layout)) == ("worker 0", "worker 1")
        watched.end()
        assert watched.collectives == {"exchange": 1}
        watched.begin()
        with gt.signal.context("stage1"):
            assert (early * 2).sum().item() == 64
        watched.end()
        assert watched.collectives == {}


# -- contexts alone, without names of parameters -----------------------------------------------

TWO_BY_TWO = """
pp_stage0: {shard: {axis: 0, workers: [0, 1]}}
pp_stage0_colpar: {shard: {axis: 1, workers: [0, 1]}}
pp_stage0_rowpar: {shard: {axis: 0, workers: [0, 1]}}
pp_stage1: {shard: {axis: 0, workers: [2, 3]}}
pp_stage1_colpar: {shard: {axis: 1, workers: [2, 3]}}
pp_stage1_rowpar: {shard: {axis: 0, workers: [2, 3]}}
"""


class Piped(nn.Module):
    """Two stages, each split by columns and rows; parameters are created under the signals they are used under."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.ParameterList(), nn.ParameterList()
        for stage in range(2):
            with gt.signal.context(f"pp_stage{stage}_colpar"):
                self.up.append(nn.Parameter(gt.randn(20, 80) / 8))
            with gt.signal.context(f"pp_stage{stage}_rowpar"):
                self.down.append(nn.Parameter(gt.randn(80, 20) / 8))

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        for stage in range(2):
            with gt.signal.context(f"pp_stage{stage}_colpar"):
                y = (x @ self.up[stage]).relu()
            with gt.signal.context(f"pp_stage{stage}_rowpar"):
                y = y @ self.down[stage]
            with gt.signal.context(f"pp_stage{stage}"):
                x = x + y
        return x


def test_tensor_parallel_stages_by_contexts_alone(under: Any) -> None:
    training = Training(Piped, lambda: numbers(64, 20, 20))
    watched = in_a_step(TWO_BY_TWO, 4, training, under)
    with under(TWO_BY_TWO), Cluster(4).client():
        ours = trained(training)
        gt.manual_seed(0)
        assert [str(p.layout) for p in Piped().parameters()] == [
            "S(1) on workers 0, 1",
            "S(1) on workers 2, 3",
            "S(0) on workers 0, 1",
            "S(0) on workers 2, 3",
        ]
    agree(ours, training)
    parameters = 4 * 4 * 20 * 80
    assert watched.bytes == pytest.approx([parameters] * 4, rel=0.1), (
        "of parameters, gradients and two states a quarter"
    )


# -- real processes ----------------------------------------------------------------------------

REAL = ("data parallel, gpt", "tensor parallel, gpt", "fully sharded, 13 rows", "stages, gpt", "auto")
CLIENT = """
    import json, pathlib
    from tests.support.recipes import configured
    from tests.test_recipes import REAL, RECIPES, trained
    go()
    for name in REAL:
        text, _, training = RECIPES[name]
        with configured(pathlib.Path(sys.argv[1]), text):
            losses, parameters = trained(training)
            say(json.dumps([name, losses, {n: p.tolist() for n, p in parameters.items()}]))
    say("done")
"""


@pytest.mark.long
def test_with_real_workers(stack: contextlib.ExitStack, tmp_path: Any) -> None:
    """Moves over gloo."""
    system = System(stack)
    for _ in range(2):
        system.worker("--backend", "torch", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    client = system.client(CLIENT.replace("sys.argv[1]", repr(str(tmp_path / "recipe.yaml"))))
    client.tell()
    for name in REAL:
        client.expect(json.dumps([name])[:-1])
    client.expect("done")
    trained = [json.loads(line) for line in client.lines if line.startswith('["')]
    assert [name for name, _, _ in trained] == list(REAL)
    for name, losses, parameters in trained:
        agree((losses, {n: np.array(p, np.float32) for n, p in parameters.items()}), RECIPES[name][2])


@pytest.mark.long
def test_memory_of_real_workers(stack: contextlib.ExitStack, tmp_path: Any) -> None:
    system = System(stack)
    for _ in range(2):
        system.worker("--backend", "numpy")
    program = f"""
        import json, pathlib
        from tests.support.recipes import Mlp, configured, numbers, train
        from tests.test_recipes import DATA, SHARDED
        for text in (DATA, SHARDED):
            with configured(pathlib.Path({str(tmp_path / "recipe.yaml")!r}), text):
                model = Mlp(64, 64)
                optimizer = gt.optim.AdamW(model.parameters())
                train(model, numbers(512, 64), steps=2, make=lambda _: optimizer)
                say(json.dumps([worker["client"]["bytes"] for worker in gt.debug.memory().values()]))
                del model, optimizer
        say("done")
    """
    client = system.client(program)
    client.expect("done", 100)
    whole, cut = (json.loads(line) for line in client.lines if line.startswith("["))
    everything = 4 * 4 * (2 * 64 * 64 + 2 * 64 + 5 * 64 + 5)
    assert whole == pytest.approx([everything] * 2, rel=0.05)
    assert cut == pytest.approx([everything / 2] * 2, rel=0.05)
