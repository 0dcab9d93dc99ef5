"""Configuration files: what they may contain, and the text of every error."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.signals.configfile import read
from gt.client.stream import configuration
from gt.client.stream.configuration import Signal
from gt.testing import Cluster
from tests.support.processes import environment

DIM = "a dim, an integer from -64 to 63 (negative ones count from the end)"
WORKERS = "a list of different workers, such as [0, 1]"
KEYS = "shard, workers, mesh, weights, replicate, output, match, modules, uploads, backward, compile"
SHARD = "{axis: DIM, workers: […]}, or dims and axes of a mesh, such as {0: dp, 1: tp}"
OUTPUT = "replicate, {axis: DIM}, or dims and axes of a mesh, such as {0: dp}"
MESH = "axes and their sizes, such as {dp: 2, tp: 4}"
WEIGHTS = "speed, the weights of the workers, such as [2, 1], or those of axes of a mesh, such as {dp: [2, 1]}"
INTEGERS = "weights, integers from 1 to 1000, such as [2, 1]"
MODULES = "a pattern for names of modules, such as layers.0, or a list of them"
PATTERN = "a pattern for names of parameters, such as layers.*.weight, or a list of them"


@pytest.fixture(autouse=True)
def _nothing_configured() -> Iterator[None]:
    yield
    gt.load_config(None)
    gt.auto_shard(False)


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "s.yaml").write_text(text)
        return "s.yaml"

    return write


#: contents of a file, and its meaning
MEANINGS: dict[str, dict[str, Any]] = {
    "a: {shard: {axis: 0, workers: [0, 1]}}": {"workers": (0, 1), "shard": ((0, ""),)},
    "a: {shard: {axis: -1, workers: [3]}, backward: b, compile: true}": {
        "workers": (3,), "shard": ((-1, ""),), "backward": "b", "compile": True,
    },
    "a: {shard: {axis: 1}}": {"shard": ((1, ""),)},
    "a: {compile: true}": {"compile": True, "places": False},
    "a: {}": {"places": False},
    "a: {backward: b, replicate: false}": {"backward": "b", "places": False},
    "a: {workers: [2, 3]}": {"workers": (2, 3)},
    "a: {workers: [2, 3], shard: {axis: 1}}": {"workers": (2, 3), "shard": ((1, ""),)},
    "a: {replicate: true}": {"replicate": True},
    "a: {mesh: {dp: 2, tp: 4}, shard: {0: dp, 1: tp}}": {
        "mesh": (("dp", 2), ("tp", 4)), "shard": ((0, "dp"), (1, "tp")),
    },
    "a: {mesh: {dp: 2, tp: 2}, workers: [3, 2, 1, 0], shard: {-1: [tp, dp]}, output: {0: dp}}": {
        "mesh": (("dp", 2), ("tp", 2)), "workers": (3, 2, 1, 0), "shard": ((-1, "tp"), (-1, "dp")),
        "output": ((0, "dp"),),
    },
    "mesh: {dp: 2}\nworkers: [4, 5]\na: {shard: {0: dp}, output: replicate}": {
        "mesh": (("dp", 2),), "workers": (4, 5), "shard": ((0, "dp"),), "output": (),
    },
    "mesh: {dp: 2}\na: {shard: {axis: 0}}": {"mesh": (("dp", 2),), "shard": ((0, ""),)},
    "mesh: {dp: 2, tp: 2}\na: {shard: {axis: 0, workers: [1]}}": {"workers": (1,), "shard": ((0, ""),)},
    "mesh: {dp: 2, tp: 2}\na: {mesh: {x: 3}, output: {axis: 1}}": {"mesh": (("x", 3),), "output": ((1, ""),)},
    "workers: [1, 2]\na: {output: {axis: 0}}": {"workers": (1, 2), "output": ((0, ""),)},
    "a: {shard: {axis: 0, workers: [3, 4]}, weights: [2, 1]}": {
        "workers": (3, 4), "shard": ((0, ""),), "weights": (("", (2, 1)),),
    },
    "a: {mesh: {dp: 2, tp: 2}, weights: {tp: [1, 3]}, replicate: true}": {
        "mesh": (("dp", 2), ("tp", 2)), "weights": (("tp", (1, 3)),), "replicate": True,
    },
    "a: {shard: {axis: 0}, weights: speed}": {"shard": ((0, ""),), "by_speed": True},
    "mesh: {dp: 2}\nweights: [2, 1]\na: {shard: {0: dp}}": {
        "mesh": (("dp", 2),), "shard": ((0, "dp"),), "weights": (("dp", (2, 1)),),
    },
    "mesh: {dp: 2}\nweights: [2, 1]\na: {workers: [4]}": {"workers": (4,)},
    "mesh: {dp: 2}\nweights: [2, 1]\na: {shard: {0: dp}, weights: speed}": {
        "mesh": (("dp", 2),), "shard": ((0, "dp"),), "by_speed": True,
    },
    "weights: speed\na: {workers: [4, 5]}": {"workers": (4, 5), "by_speed": True},
    "weights: speed\na: {workers: [4, 5], weights: [1, 9]}": {"workers": (4, 5), "weights": (("", (1, 9)),)},
    "weights: {shard: {axis: 0}}\na: {replicate: true}": {"replicate": True},
    "a: {match: 'layers.*.w', shard: {axis: 0}}": {"match": ("layers.*.w",), "shard": ((0, ""),)},
    "a: {match: [b, c], replicate: true}": {"match": ("b", "c"), "replicate": True},
    "a: {modules: 'layers.0', workers: [1]}": {"modules": ("layers.0",), "workers": (1,)},
    "a: {uploads: true, shard: {axis: 0}}": {"uploads": True, "shard": ((0, ""),)},
    "x: &x {replicate: true}\na: *x": {"replicate": True},
    "x: &x {replicate: true, backward: b}\na: {<<: *x, backward: c}": {"replicate": True, "backward": "c"},
    "x: &x {replicate: true}\ny: &y {<<: *x}\nz: *y\na: *y": {"replicate": True},
}  # fmt: skip


@pytest.mark.parametrize("text", MEANINGS)
def test_configuration_of_a_file(text: str, write: Any) -> None:
    assert read(write(text))["a"] == Signal(name="a", **MEANINGS[text])


#: the help in the error for workers that do not exist
MORE = " (gt.gpu_workers(n) starts a system of n)"


def test_the_seeds_configuration(write: Any) -> None:
    text = """
        # Pipeline stage 0 - all layers on GPUs 0-1
        pp_stage0:
          shard:
            axis: 0
            workers: [0, 1]
        pp_stage0_colpar:
          shard:
            axis: 1
            workers: [0, 1]
        stage_1:
          shard:
            axis: 0
            workers: [2, 3]
          backward: stage_1_backward
        hot_path:
          shard:
            axis: 0
            workers: [0, 1, 2, 3]
          compile: true  # Mark as compilation boundary
        """
    assert list(read(write(text)).values()) == [
        Signal(name="pp_stage0", workers=(0, 1), shard=((0, ""),)),
        Signal(name="pp_stage0_colpar", workers=(0, 1), shard=((1, ""),)),
        Signal(name="stage_1", workers=(2, 3), shard=((0, ""),), backward="stage_1_backward"),
        Signal(name="hot_path", workers=(0, 1, 2, 3), shard=((0, ""),), compile=True),
    ]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}", "mesh: {dp: 2}"])
def test_an_empty_file_configures_nothing(text: str, write: Any) -> None:
    assert read(write(text)) == {}


#: contents of a file, and the error text after the file's name
MISTAKES = {
    "- a": "the file is ['a']; allowed: names of signals, each with its configuration",
    "3": "the file is 3; allowed: names of signals, each with its configuration",
    "a: [": "the file: this is not valid YAML: line 1: expected the node content, but found '<stream end>'",
    "a: {}\n---\nb: {}": "the file: this is not valid YAML: line 2: but found another document",
    "a: !!python/name:os.system x": "the file: this is not valid YAML: line 1: could not determine a constructor "
    "for the tag 'tag:yaml.org,2002:python/name:os.system'",
    "a: &x {mesh: *x}": "a" + ".mesh" * 15 + ": nested more than 16 deep",
    "{[1]: 2}": "the file: line 1: a key must be a name or a number",
    "a: {}\nb: {}\na: {}": "a: this key appears twice, in lines 1 and 3",
    "a:\n  shard: {axis: 0}\n  shard: {axis: 1}": "a.shard: this key appears twice, in lines 2 and 3",
    "1: {}": "1: a signal's name is a string, not 1; put it in quotes",
    "on: {}": "True: a signal's name is a string, not True; put it in quotes",
    "'': {}": "the file: '' is not a valid signal name: use 1 to 200 characters, the first not @",
    "'@a': {}": "the file: '@a' is not a valid signal name: use 1 to 200 characters, the first not @",
    "a" * 201
    + ": {}": f"the file: '{'a' * 56}... is not a valid signal name: use 1 to 200 characters, the first not @",
    "a:": f"a is None; allowed: a mapping with any of {KEYS}",
    "a: 3": f"a is 3; allowed: a mapping with any of {KEYS}",
    "a: {shrad: {axis: 0}}": f"a.shrad: there is no such key; did you mean shard? allowed: {KEYS}",
    "a: {0: dp}": f"a.0: there is no such key; allowed: {KEYS}",
    "a: {shard: 0}": f"a.shard is 0; allowed: {SHARD}",
    "a: {shard: }": f"a.shard is None; allowed: {SHARD}",
    "a: {shard: {}}": f"a.shard is {{}}; allowed: {SHARD}",
    "a: {shard: {axes: 0}}": "a.shard.axes: there is no such key; did you mean axis? allowed: axis, workers",
    "a: {shard: {workers: [0]}}": "a.shard: axis is missing: the dim to shard",
    "a: {shard: {axis: one}}": f"a.shard.axis is 'one'; allowed: {DIM}",
    "a: {shard: {axis: true}}": f"a.shard.axis is True; allowed: {DIM}",
    "a: {shard: {axis: 64}}": f"a.shard.axis is 64; allowed: {DIM}",
    "a: {shard: {axis: 0, workers: 2}}": f"a.shard.workers is 2; allowed: {WORKERS}",
    "a: {shard: {axis: 0, workers: }}": f"a.shard.workers is None; allowed: {WORKERS}",
    "a: {shard: {axis: 0, workers: []}}": f"a.shard.workers is []; allowed: {WORKERS}",
    "a: {shard: {axis: 0, workers: [0, x]}}": "a.shard.workers.1 is 'x'; allowed: the number of a worker, 0 or more",
    "a: {workers: [-1]}": "a.workers.0 is -1; allowed: the number of a worker, 0 or more",
    "a: {workers: [false]}": "a.workers.0 is False; allowed: the number of a worker, 0 or more",
    "a: {workers: [0, 1, 0]}": "a.workers.2: worker 0 is named twice",
    "a: {workers: }": f"a.workers is None; allowed: {WORKERS}",
    "a: {workers: [0], shard: {axis: 0, workers: [0]}}": "a.shard.workers: a.workers names workers as well; "
    "name them once",
    "a: {mesh: 4}": f"a.mesh is 4; allowed: {MESH}",
    "a: {mesh: {}}": f"a.mesh is {{}}; allowed: {MESH}",
    "mesh: [2]": f"mesh is [2]; allowed: {MESH}",
    "workers: 2": f"workers is 2; allowed: {WORKERS}",
    "a: {mesh: {dp: 0}}": "a.mesh.dp is 0; allowed: the size of an axis, 1 or more",
    "a: {mesh: {dp: two}}": "a.mesh.dp is 'two'; allowed: the size of an axis, 1 or more",
    "a: {mesh: {1: 2}}": "a.mesh.1: the name of an axis is a string, not 1; put it in quotes",
    "a: {mesh: {dp: 2, tp: 4}, workers: [0, 1]}": "a.mesh: a mesh of 2 x 4 has 8 workers, and a.workers names 2",
    "mesh: {dp: 2}\nworkers: [0]": "mesh: a mesh of 2 has 2 workers, and workers names 1",
    "a: {mesh: {dp: 2}, shard: {axis: 0, workers: [0]}}": "a.mesh: a mesh of 2 has 2 workers, and a.shard.workers "
    "names 1",
    "a: {shard: {0: dp}}": "a.shard.0: there is no mesh with an axis 'dp'; add mesh: {dp: 2}",
    "a: {shard: {0: 3}}": "a.shard.0: there is no mesh with an axis 3; add mesh: {dp: 2}",
    "a: {mesh: {dp: 2}, shard: {0: tp}}": "a.shard.0 is 'tp'; allowed: an axis of the mesh: dp",
    "a: {mesh: {dp: 2}, shard: {0: []}}": "a.shard.0 is []; allowed: an axis of the mesh: dp",
    "a: {mesh: {dp: 2, tp: 2}, shard: {0: dp, 1: dp}}": "a.shard.1: axis dp already shards another dim; an axis "
    "shards one dim",
    "a: {mesh: {dp: 2, tp: 2}, shard: {0: [dp, dp]}}": "a.shard.0: axis dp already shards another dim; an axis "
    "shards one dim",
    "a: {mesh: {dp: 2}, shard: {99: dp}}": f"a.shard.99 is 99; allowed: {DIM}",
    "a: {mesh: {dp: 2}, shard: {0: dp, axis: 1}}": f"a.shard.axis is 'axis'; allowed: {DIM}",
    "a: {mesh: {dp: 2, tp: 2}, shard: {axis: 0}}": "a.shard.axis: the mesh has several axes: dp, tp; use {0: AXIS}",
    "a: {weights: fast}": f"a.weights is 'fast'; allowed: {WEIGHTS}",
    "a: {weights: {}}": f"a.weights is {{}}; allowed: {WEIGHTS}",
    "a: {weights: {dp: [2, 1]}}": f"a.weights is {{'dp': [2, 1]}}; allowed: {WEIGHTS}",
    "a: {weights: [2, 1]}": "a.weights: the workers are not known; add workers: […], or a mesh",
    "weights: [2, 1]": "weights: the workers are not known; add workers: […], or a mesh",
    "weights: 2": f"weights is 2; allowed: {WEIGHTS}",
    "a: {workers: [0, 1], weights: [2, 1, 1]}": "a.weights: 3 weights for 2 workers",
    "a: {workers: [0, 1], weights: [0, 1]}": f"a.weights is [0, 1]; allowed: {INTEGERS}",
    "a: {workers: [0, 1], weights: [1, 1001]}": f"a.weights is [1, 1001]; allowed: {INTEGERS}",
    "a: {workers: [0, 1], weights: [1.5, true]}": f"a.weights is [1.5, True]; allowed: {INTEGERS}",
    "a: {mesh: {dp: 2}, weights: {dp: 2}}": f"a.weights is 2; allowed: {INTEGERS}",
    "a: {mesh: {dp: 2}, weights: {tp: [2, 1]}}": "a.weights is {'tp': [2, 1]}; allowed: weights of axes of the mesh: "
    "dp",
    "a: {mesh: {dp: 2, tp: 2}, weights: [2, 1]}": "a.weights: the mesh has several axes: dp, tp; use {AXIS: […]}",
    "a: {output: 0}": f"a.output is 0; allowed: {OUTPUT}",
    "a: {output: replicated}": f"a.output is 'replicated'; allowed: {OUTPUT}",
    "a: {output: {}}": f"a.output is {{}}; allowed: {OUTPUT}",
    "a: {output: {axis: 0, workers: [1]}}": "a.output.workers: there is no such key; allowed: axis",
    "a: {replicate: 1}": "a.replicate is 1; allowed: true or false",
    "a: {compile: maybe}": "a.compile is 'maybe'; allowed: true or false",
    "a: {replicate: true, shard: {axis: 0}}": "a: shard and replicate: true contradict each other; remove one of them",
    "a: {match: '*'}": "a.match: the matching parameters have no placement; add shard or replicate: true",
    "a: {modules: []}": f"a.modules is []; allowed: {MODULES}",
    "a: {uploads: 1, replicate: true}": "a.uploads is 1; allowed: true or false",
    "a: {uploads: true}": "a.uploads: the uploaded tensors have no placement; add shard or replicate: true",
    "a: &a {uploads: true, replicate: true}\nb: *a": "b.uploads: a places the uploaded tensors already",
    "a: {match: 3, replicate: true}": f"a.match is 3; allowed: {PATTERN}",
    "a: {match: [], replicate: true}": f"a.match is []; allowed: {PATTERN}",
    "a: {match: [b, ''], replicate: true}": f"a.match is ['b', '']; allowed: {PATTERN}",
    "a: {backward: 1}": "a.backward is 1; allowed: the name of a signal",
    "a: {backward: '@x'}": "a.backward is '@x'; allowed: the name of a signal",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_is_reported(text: str, write: Any) -> None:
    gt.register_config("before", gt.SignalConfig())
    before = configuration.current
    with pytest.raises(gt.ConfigError) as error:
        gt.load_config(write(text))
    assert str(error.value) == f"s.yaml: {MISTAKES[text]}"
    assert configuration.current is before


def test_files_that_cannot_be_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("binary").write_bytes(b"\xff\xfe\x00")
    pathlib.Path("control").write_bytes(b"a: \x01")
    for path, reason in {
        "nowhere.yaml": "the configuration cannot be read: No such file or directory",
        ".": "the configuration cannot be read: Is a directory",
        "binary": "the configuration cannot be read: it is not UTF-8 text",
        "control": "the file: this is not valid YAML: special characters are not allowed",
    }.items():
        with pytest.raises(gt.ConfigError) as error:
            gt.load_config(pathlib.Path(path))
        assert str(error.value) == f"{path}: {reason}"


# -- from the program ------------------------------------------------------------------------


def test_register_config() -> None:
    gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=(0, 1)), backward_signal="b"))
    gt.register_config("b", gt.SignalConfig(gt.ShardConfig(1), compile=True))
    gt.register_config("c", gt.SignalConfig(gt.ShardConfig(-1, range(2))))
    assert configuration.current.signals == {
        "a": Signal(name="a", workers=(0, 1), shard=((0, ""),), backward="b"),
        "b": Signal(name="b", shard=((1, ""),), compile=True),
        "c": Signal(name="c", workers=(0, 1), shard=((-1, ""),)),
    }
    gt.register_config("a", gt.SignalConfig())
    assert configuration.current.signals["a"] == Signal(name="a", places=False)


def test_a_file_takes_the_place_of_all_before(write: Any) -> None:
    gt.register_config("a", gt.SignalConfig())
    gt.load_config(write("b: {replicate: true}"))
    assert list(configuration.current.signals) == ["b"]
    gt.register_config("a", gt.SignalConfig())
    assert list(configuration.current.signals) == ["b", "a"]


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("a", {"shard": {"axis": 0}}, "register_config('a', …): expected a gt.SignalConfig, not dict"),
        ("a", gt.SignalConfig({"axis": 0}), "register_config('a', …): shard must be a gt.ShardConfig, not {'axis': 0}"),
        ("a", gt.SignalConfig(gt.ShardConfig("x")), f"register_config: a.shard.axis is 'x'; allowed: {DIM}"),
        ("a", gt.SignalConfig(gt.ShardConfig(0, 3)), f"register_config: a.shard.workers is 3; allowed: {WORKERS}"),
        ("a", gt.SignalConfig(gt.ShardConfig(0, [1, 1])),
         "register_config: a.shard.workers.1: worker 1 is named twice"),
        ("a", gt.SignalConfig(compile=1), "register_config: a.compile is 1; allowed: true or false"),
        ("a", gt.SignalConfig(None, 3), "register_config: a.backward is 3; allowed: the name of a signal"),
        ("mesh", gt.SignalConfig(), "register_config: mesh: a signal cannot be called mesh: at the top of a file "
         "this key applies to all signals"),
        (3, gt.SignalConfig(), "register_config: 3: a signal's name is a string, not 3; put it in quotes"),
    ],
)  # fmt: skip
def test_register_config_reports_mistakes(name: Any, config: Any, text: str) -> None:
    with pytest.raises(gt.ConfigError) as error:
        gt.register_config(name, config)
    assert str(error.value) == text


# -- workers ---------------------------------------------------------------------------------

FAR = "far: {shard: {axis: 0, workers: [0, 7]}}"


def test_a_worker_that_does_not_exist_when_loading(write: Any) -> None:
    with Cluster(workers=2).client(), pytest.raises(gt.ConfigError) as error:
        gt.load_config(write(FAR))
    assert str(error.value) == f"signal 'far': worker 7 does not exist; there are: 0, 1{MORE}"
    assert configuration.current.signals == {}


def test_a_worker_that_does_not_exist_when_registering() -> None:
    with Cluster(workers=1).client(), pytest.raises(gt.ConfigError) as error:
        gt.register_config("far", gt.SignalConfig(gt.ShardConfig(0, [1])))
    assert str(error.value) == f"signal 'far': worker 1 does not exist; there are: 0{MORE}"


def test_a_worker_that_does_not_exist_at_first_use(write: Any) -> None:
    gt.load_config(write(FAR + "\nmeshed: {mesh: {dp: 2, tp: 2}, replicate: true}\nnear: {replicate: true}"))
    cluster = Cluster(workers=2)
    with cluster.client() as session:
        x = gt.ones(2)
        with gt.signal.context("near"):
            y = x + 1
        for _ in range(2):
            with pytest.raises(gt.ConfigError) as error, gt.signal.context("far"):
                x + 1
            assert str(error.value) == f"signal 'far': worker 7 does not exist; there are: 0, 1{MORE}"
        with pytest.raises(gt.ConfigError) as error:
            gt.signal.tensor(x, "meshed")
        assert str(error.value) == f"signal 'meshed': worker 2 does not exist; there are: 0, 1{MORE}"
        for _ in range(2):
            cluster.add_worker()
        cluster.settle()
        assert len(session.connection.workers) == 4
        assert gt.signal.tensor(y, "meshed").tolist() == [2, 2]


def test_a_mesh_takes_the_first_workers() -> None:
    mesh = Signal(name="a", mesh=(("dp", 2), ("tp", 2)), replicate=True)
    assert mesh.spec([7, 3, 5, 4, 9]).workers == [3, 4, 5, 7]
    assert mesh.spec([0, 1]).workers == [0, 1, 2, 3]
    assert Signal(name="a", replicate=True).spec([0, 1]).workers == []


# -- from outside ----------------------------------------------------------------------------

SHOW = (
    "import gt\nfrom gt.client.stream import configuration\n{}\n"
    "print(sorted(configuration.current.signals), configuration.current.auto)"
)
USES = {
    "session": "from gt.client.stream.session import Session; Session()",
    "context": "gt.signal.context('a').__enter__()",
    "register": "gt.register_config('b', gt.SignalConfig())",
    "file": "gt.load_config('other.yaml')",
    "nothing": "",
    "auto": "gt.auto_shard(False)",
}


@pytest.mark.parametrize(
    ("use", "auto", "shown"),
    [
        ("session", "0", "['a'] False"),
        ("session", "1", "['@parameter', 'a'] True"),
        ("context", "", "['a'] False"),
        ("register", "", "['a', 'b'] False"),
        ("file", "1", "['@parameter', 'c'] True"),
        ("file", "speed", "['@parameter', 'c'] True"),
        ("nothing", "1", "[] False"),
        ("auto", "1", "['a'] False"),
    ],
)
def test_the_environment_is_read_at_first_use(use: str, auto: str, shown: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "s.yaml").write_text("a: {replicate: true}")
    (tmp_path / "other.yaml").write_text("c: {replicate: true}")
    assert run(SHOW.format(USES[use]), tmp_path, GT_AUTO_SHARD=auto).stdout.strip() == shown


def run(script: str, folder: pathlib.Path, **settings: str) -> Any:
    settings = {"GT_CONFIG": "s.yaml", **settings}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, env=environment(**settings)
    )


def test_a_mistake_in_the_environments_file_is_reported_before_anything_starts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s.yaml").write_text("a: {sard: {axis: 0}}")
    process = run("import gt\ngt.ones(1)", tmp_path)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].startswith(
        "gt.errors.ConfigError: s.yaml: a.sard: there is no such key; did"
    )
    assert "LocalSystem" not in process.stderr
