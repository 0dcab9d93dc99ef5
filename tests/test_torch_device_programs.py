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

import gt.torch_device
from gt.testing import Cluster
from tests.programs_of_others import data
from tests.support.sizes import ROOT

DEVICE = gt.torch_device.NAME
SIZES = {"vocab_size": 128, "max_position_embeddings": 64}


def gpt2(transformers: Any) -> torch.nn.Module:
    drops = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, **drops)
    return transformers.GPT2LMHeadModel(config)


def llama(transformers: Any) -> torch.nn.Module:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **shape, num_key_value_heads=2))


def bert(transformers: Any) -> torch.nn.Module:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **shape, **drops))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("make", [gpt2, llama, bert], ids=lambda make: make.__name__)
def test_a_language_model_has_torchs_losses(make: Callable[[Any], torch.nn.Module], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)  # these models need no images
    import transformers

    torch.manual_seed(0)
    original, tokens = make(transformers).train(), torch.randint(0, 128, (4, 32))
    losses: dict[str, list[float]] = {}
    with Cluster().client():
        for device in ("cpu", DEVICE):
            model, batch = copy.deepcopy(original).to(device), tokens.to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            losses[device] = []
            for _ in range(5):
                loss = model(input_ids=batch, labels=batch).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[device].append(loss.item())
    assert losses[DEVICE] == pytest.approx(losses["cpu"], rel=1e-5)


NANOGPT = (
    "--dataset=shakespeare_char --compile=False --dtype=float32 --eval_iters=1 --block_size=32 --batch_size=4 "
    "--n_layer=2 --n_head=4 --n_embd=64 --max_iters=20 --lr_decay_iters=20 --warmup_iters=2 --learning_rate=3e-3 "
    "--dropout=0.0 --eval_interval=20 --gradient_accumulation_steps=1"
)


@pytest.mark.long
def test_nanogpt_unchanged_has_torchs_bits(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> None:
    programs = pytestconfig.getoption("--programs")
    if programs is None or not (programs / "nanoGPT").is_dir():
        pytest.skip("needs --programs, with nanoGPT in it")
    folder = tmp_path / "nanoGPT"
    shutil.copytree(programs / "nanoGPT", folder)
    data.characters(folder)
    weights = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for device, runner in (("cpu", []), (DEVICE, ["-m", "gt.run"])):
        command = [sys.executable, *runner, "train.py", f"--device={device}", f"--out_dir={device}", *NANOGPT.split()]
        process = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert process.returncode == 0, process.stderr[-2000:]
        with Cluster().client():
            checkpoint = torch.load(folder / device / "ckpt.pt", map_location="cpu", weights_only=False)
        weights.append(checkpoint["model"])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
