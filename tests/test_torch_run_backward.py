"""`gt.run`: hooks, custom functions, checkpoints and random numbers of a script in a backward pass."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.support.processes import LONG, ROOT, environment

SCRIPT = """
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

def leaf(*shape):
    return torch.ones(*shape, device="cuda", requires_grad=True)

# a checkpoint drops the same elements again, and its function may name the device
dropped = lambda x: torch.nn.functional.dropout(x * torch.arange(1, 9, device="cuda"))
for reentrant in (True, False):
    x = leaf(4, 8)
    y = checkpoint(dropped, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(y, x.grad) and 0 < int((y == 0).sum()) < 32, (y, x.grad)

# hooks of tensors, and of what is saved
seen = []
x = leaf(3)
y = x * 2
y.register_hook(lambda g: seen.append(g.device.type) or g + torch.ones(3, device="cuda"))
x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.is_cuda))
torch.autograd.backward(y.sum())
assert x.grad.tolist() == [4, 4, 4] and seen == ["cuda", True], (x.grad, seen)
for hooks in (save_on_cpu(), saved_tensors_hooks(lambda t: (t.device, t.cpu()), lambda kept: kept[1].to(kept[0])),
              saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda())):
    x = leaf(3)
    with hooks:
        y = x.exp()
    y.sum().backward()
    assert torch.equal(x.grad, y)

# a function of the script's own
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.device = x.device
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.is_cuda and grad.device.type == "cuda"
        return grad * torch.full((3,), 2.0, device=ctx.device) + torch.zeros(3).to("cuda")

x = leaf(3)
Twice.apply(x).sum().backward()
assert x.grad.tolist() == [2, 2, 2]
print("done")
"""


def test_the_script_s_python_in_a_backward_pass(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "gt.run", str(script)]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=LONG
    )
    assert process.stdout == "done\n", process.stderr
