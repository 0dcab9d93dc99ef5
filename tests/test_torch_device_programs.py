"""Other people's models and programs on the device ``gtx``, compared with torch on the CPU."""

from __future__ import annotations

import copy
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from gt.testing import Cluster
from gt.torch_device import cpu_fallbacks
from tests.programs_of_others import data, device, device_models
from tests.programs_of_others.device import DEVICE
from tests.programs_of_others.device_models import MODELS, Model
from tests.programs_of_others.table import SCRIPTS
from tests.support.sizes import ROOT

#: two cases for `make test`; the others take longer and need packages
QUICK = ("LSTM", "GPT-2")


def cases() -> list[Any]:
    return [pytest.param(m, id=m.name, marks=[pytest.mark.long] * (m.name not in QUICK)) for m in MODELS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", cases())
def test_a_model_has_torchs_losses(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    if not model.is_installed:
        pytest.skip(f"needs {model.package}")
    monkeypatch.delenv("GT_TORCH_FALLBACK", raising=False)
    device.prepare_imports()
    before = cpu_fallbacks()
    with Cluster().client():
        assert device.difference(model) <= model.tolerance
    assert cpu_fallbacks() == before


def test_the_table_has_a_row_with_times() -> None:
    with Cluster().client():
        cells = device.row(MODELS[0], rounds=1, steps=2).strip("| ").split(" | ")
    assert cells[:2] == ["LSTM", "torch"]
    assert float(cells[2]) <= 1e-5
    assert [cell.split()[-1] for cell in cells[3:5]] == ["ms", "ms"]
    assert cells[5].endswith("×")


GENERATE = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.3, "top_k": 20, "top_p": 0.9},
    "beams": {"do_sample": False, "num_beams": 3},
    "static cache": {"do_sample": False, "repetition_penalty": 1.3, "cache_implementation": "static"},
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("how", GENERATE)
@pytest.mark.parametrize("make", [device_models.gpt2, device_models.llama], ids=lambda make: make.__name__)
def test_generated_tokens_are_torchs(make: Callable[[Any], Any], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache of keys and values. What is sampled is drawn on the CPU: the device's random numbers are GT's."""
    device.prepare_imports()
    import transformers

    draw, generator = torch.multinomial, torch.Generator()
    monkeypatch.setattr(
        torch, "multinomial", lambda p, num_samples: draw(p.cpu(), num_samples, generator=generator).to(p.device)
    )
    torch.manual_seed(0)
    original, prompt = make(transformers).eval(), torch.randint(2, device_models.VOCABULARY, (2, 5))
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "pad_token_id": 1, "use_cache": True}
    results = []
    with Cluster().client():
        for place in ("cpu", DEVICE):
            generator.manual_seed(3)
            model = copy.deepcopy(original).to(place)
            results.append(model.generate(prompt.to(place), **options, **GENERATE[how]).tolist())
    assert results[0] == results[1]
    assert len(results[0][0]) == 25


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_hugging_face_reads_a_folder_that_gt_saved(tmp_path: pathlib.Path) -> None:
    """Several files of safetensors and their index, beside the configuration of the model."""
    device.prepare_imports()
    import transformers

    import gt

    model = device_models.gpt2(transformers)
    model.config.save_pretrained(tmp_path)
    with Cluster().client():
        state = {name: gt.tensor(x.numpy()) for name, x in model.state_dict().items() if name != "lm_head.weight"}
        gt.save(state, tmp_path, max_shard_size=20_000)
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        for place in ("cpu", DEVICE):
            loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map=place)
            assert loaded.lm_head.weight is loaded.transformer.wte.weight
            for name, x in model.state_dict().items():
                assert torch.equal(loaded.state_dict()[name].cpu(), x), name


# -- scripts -------------------------------------------------------------------------------


def run(words: list[str], folder: pathlib.Path, on_gt: bool) -> str:
    """What a script prints, with Python or with ``gt run``."""
    command = [sys.executable, *(["-m", "gt.run"] if on_gt else []), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def test_the_example_of_the_demo(tmp_path: pathlib.Path) -> None:
    words = [str(ROOT / "examples" / "torch_lstm.py"), "--steps=21", "--width=32"]
    lines = run(words, tmp_path, on_gt=True).splitlines()
    first, last = (float(line.split()[-1]) for line in lines[:2])
    assert last < first - 0.5
    assert lines[-1].endswith(" s on cuda:0")


def printed(output: str, name: str) -> list[str]:
    return next(line.split()[1:] for line in output.splitlines() if line.startswith(f"{name} "))


@pytest.mark.long
@pytest.mark.parametrize("script", ["hf_accelerate", "hf_trainer"])
def test_training_loops_of_hugging_face(script: str, tmp_path: pathlib.Path) -> None:
    """In these scripts the device is chosen by the library: ``cuda``, which is GT."""
    if find_spec("accelerate") is None or find_spec("transformers") is None:
        pytest.skip("needs accelerate and transformers")
    words = [str(SCRIPTS / f"{script}.py"), str(tmp_path / "saved")]
    outputs = [run(words, tmp_path, on_gt) for on_gt in (False, True)]
    assert [printed(output, "device") for output in outputs] == [["cpu"], ["cuda"]]
    expected, losses = (list(map(float, printed(output, "losses"))) for output in outputs)
    assert len(expected) == 20
    assert losses == pytest.approx(expected, rel=1e-5)
    if script == "hf_trainer":
        norms = [list(map(float, printed(output, "norms"))) for output in outputs]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4)
        assert printed(outputs[1], "saved") == ["True"]


NANOGPT = (
    "--dataset=shakespeare_char --compile=False --dtype=float32 --eval_iters=1 --block_size=32 --batch_size=4 "
    "--n_layer=2 --n_head=4 --n_embd=64 --max_iters=20 --lr_decay_iters=20 --warmup_iters=2 --learning_rate=3e-3 "
    "--dropout=0.0 --eval_interval=20 --gradient_accumulation_steps=1"
)
#: one candidate for each token, so that nothing is drawn
SAMPLE = "--out_dir=cpu --compile=False --dtype=float32 --num_samples=2 --max_new_tokens=50 --top_k=1"


def copy_of_nanogpt(parent: pathlib.Path, options: pytest.Config) -> pathlib.Path:
    """A folder with nanoGPT and its data. Skips the test where there is no checkout."""
    programs = options.getoption("--programs")
    if programs is None or not (programs / "nanoGPT").is_dir():
        pytest.skip("needs --programs, with nanoGPT in it")
    folder = parent / "nanoGPT"
    shutil.copytree(programs / "nanoGPT", folder)
    data.characters(folder)
    return folder


@pytest.mark.long
def test_nanogpt_unchanged_has_torchs_bits(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> None:
    folder = copy_of_nanogpt(tmp_path, pytestconfig)
    weights, samples = [], []
    for place in ("cpu", DEVICE):
        on_gt = place == DEVICE
        run(["train.py", f"--device={place}", f"--out_dir={place}", *NANOGPT.split()], folder, on_gt)
        with Cluster().client():
            checkpoint = torch.load(folder / place / "ckpt.pt", map_location="cpu", weights_only=False)
        weights.append(checkpoint["model"])
        output = run(["sample.py", f"--device={place}", *SAMPLE.split()], folder, on_gt)
        samples.append(output.partition("Loading meta")[2])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert samples[0] == samples[1]
    assert len(samples[0]) > 100
