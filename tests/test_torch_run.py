"""`gt.run`: in a script, the device ``cuda`` is GT."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from gt import run
from tests.support.processes import LONG, ROOT, environment

SCRIPT = """
import copy, threading, torch
from torch.utils.checkpoint import checkpoint

def refused(function, text):
    try:
        function()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

# devices
x, model = torch.ones(4, 3).cuda(), torch.nn.Linear(3, 2).cuda()
assert x.is_cuda and not torch.ones(2).is_cuda and torch.ones(2).device.type == "cpu"
assert x.device == torch.device("cuda:0") == torch.device(0) == model.weight.device
assert torch.device("cuda").type == "cuda" and x.get_device() == 0 and x.data_ptr()
assert x.new_zeros(2).is_cuda and torch.zeros(2, device=x.device).is_cuda and torch.ones(2).to(0).is_cuda
with torch.device("cuda"):
    assert torch.zeros(2).is_cuda
torch.set_default_device("cuda")
assert torch.zeros(2).is_cuda
torch.set_default_device(None)
for wrong in (lambda: torch.ones(2, device="cuda:1"), lambda: x.cuda(1), lambda: model.to("cuda:1"),
              lambda: model.cuda(1), lambda: torch.cuda.set_device(1)):
    refused(wrong, "invalid device ordinal")
results = []
thread = threading.Thread(target=lambda: results.append(torch.ones(2, device="cuda").is_cuda))
thread.start()
thread.join()
assert results == [True]

# torch.cuda
cuda = torch.cuda
begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
begin.record()
model(x)
end.record()
end.synchronize()
assert begin.elapsed_time(end) > 0 and end.query()
for a, b in ((cuda.Event(), end), (begin, cuda.Event(enable_timing=True))):
    try:
        a.elapsed_time(b)
    except ValueError as error:
        assert "Both events must be" in str(error)
    else:
        raise AssertionError
cuda.set_device(0), cuda.set_device("cuda:0"), cuda.empty_cache(), cuda.ipc_collect(), cuda.synchronize()
assert (cuda.device_count(), cuda.current_device(), cuda.get_device_name(0)) == (1, 0, "GT")
assert cuda.get_device_properties(0).total_memory > 0
assert cuda.get_device_capability() >= (8, 0) and cuda.is_bf16_supported()
assert cuda.memory_allocated() > 0 and cuda.max_memory_allocated() > 0 and len(cuda.mem_get_info()) == 2
stream = cuda.Stream()
with cuda.stream(stream), cuda.device(0):
    model(x).record_stream(stream)
stream.wait_stream(cuda.current_stream())
stream.record_event().wait()
cuda.nvtx.range_push("a")

# random numbers
cuda.manual_seed_all(3)
first, state = torch.randn(3, device="cuda"), cuda.get_rng_state()
again = torch.randn(3, device="cuda")
cuda.set_rng_state(state)
assert torch.equal(torch.randn(3, device="cuda"), again)
cuda.set_rng_state_all(cuda.get_rng_state_all())
generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and isinstance(torch.Generator(), torch.Generator)
assert generator.device.type == "cuda" and generator.initial_seed() == 3
seen = generator.get_state()
a, other = torch.randn(3, device="cuda", generator=generator), torch.randn(3, device="cuda")
b = torch.empty(3, device="cuda").normal_(generator=generator)
generator.set_state(seen)
assert torch.equal(a, torch.randn(3, device="cuda", generator=generator))
assert torch.equal(a, first) and not torch.equal(a, b)

# modules and training
assert torch.equal(torch.nn.DataParallel(model)(torch.ones(4, 3)), model(x))
assert torch.equal(torch.compile(model)(x), model(x))
optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.is_autocast_enabled("cuda") and model(x).dtype is torch.bfloat16
    loss = model(x).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
torch.autograd.backward(model(x).sum())
assert torch.autograd.grad(model(x).sum(), model.weight)[0].is_cuda and copy.deepcopy(model).weight.is_cuda
inputs = x.clone().requires_grad_()
checkpoint(model, inputs, use_reentrant=False).sum().backward()
assert inputs.grad.is_cuda

# torch.load
torch.save({"cpu": torch.ones(3), "cuda": x, "model": model.state_dict()}, "state.pt")
WANTED = [("cuda", "cuda", "cuda"), ("cuda:0", "cuda", "cuda"), (torch.device("cuda"), "cuda", "cuda"),
          (None, "cpu", "cuda"), ("cpu", "cpu", "cpu"), (lambda s, l: s.cuda(), "cuda", "cuda"),
          (lambda s, l: s, "cpu", "cpu")]
for location, *kinds in WANTED:
    for mmap in (False, True):
        loaded = torch.load("state.pt", map_location=location, mmap=mmap)
        assert [loaded[name].device.type for name in ("cpu", "cuda")] == kinds
        assert loaded["cpu"].tolist() == [1, 1, 1] and loaded["cuda"].sum() == 12
refused(lambda: torch.load("state.pt", map_location="cuda:1"), "device_count() is 1")
print("done")
"""


def test_scripts_for_a_gpu_run(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "gt.run", str(script)]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=LONG
    )
    assert process.stdout == "done\n", process.stderr


def test_an_lstm_does_not_ask_for_cudnn(tmp_path: pathlib.Path) -> None:
    """torch would arrange the weights in memory for it, and without cudnn it warns."""
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.nn.LSTM(2, 3).cuda()(torch.ones(4, 1, 2).cuda())[0].shape)\n")
    command = [sys.executable, "-W", "error::UserWarning", "-m", "gt.run", str(script)]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=LONG
    )
    assert process.stdout == "torch.Size([4, 1, 3])\n", process.stderr


def test_a_script_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["nofile.py"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("gt.run: there is no file 'nofile.py'")


def test_the_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--help"])
    assert "gt run train.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "statement", ["import gt.run, sys; sys.exit(gt.run.main([sys.argv[1]]))", "import gt.torch_device"]
)
def test_without_torch_the_error_says_how_to_install_it(statement: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    hide = "import sys; sys.modules['torch'] = None; import importlib.util as u; find = u.find_spec\n"
    hide += "u.find_spec = lambda name, package=None: None if name == 'torch' else find(name, package)\n"
    process = subprocess.run(
        [sys.executable, "-c", hide + statement, str(script)],
        cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=LONG,
    )  # fmt: skip
    assert process.returncode
    assert "needs torch: pip install 'gt-tensor[worker]'" in process.stderr.splitlines()[-1]
