"""Programs that GT once got wrong, found and shrunk by `tests.test_gradient_programs`: tried in every setting.

``gt`` is torch or GT; ``draw``, ``ramp`` and ``F`` are those of `tests.support.gradient_programs`. Every tensor named
``a0``, ``a1``, … and its gradient is compared at the end, and each line that one library refuses.
"""

from __future__ import annotations

ROWS = {
    "the gradient of a view, where its strides allow no view": """
a0 = gt.tensor(draw(0, (2, 8, 16)), requires_grad=True)
a1 = gt.tensor(draw(1, (16, 16)), requires_grad=True)
a2 = (a0 @ a1).reshape(2, 8, 4, 4).transpose(1, 2)
(a2 * a2).sum().backward()
""",
    "the gradient of what is written through a reshaped view": """
a0 = gt.tensor(draw(0, (2, 3, 4)), requires_grad=True)
a1 = gt.tensor(draw(1, (6, 4)), requires_grad=True)
a2 = a0 * 2
a2.view(6, 4)[1:].copy_(a1[1:])
(a2.transpose(0, 2) * ramp(a2.transpose(0, 2))).sum().backward()
""",
    "gradients of such gradients": """
a0 = gt.tensor(draw(0, (2, 3, 4)), requires_grad=True)
a1 = gt.tensor(draw(1, (4, 4)), requires_grad=True)
a2 = (a0 @ a1).view(2, 3, 2, 2).transpose(1, 2)
a3, a4 = gt.autograd.grad((a2 * a2 * ramp(a2)).sum(), [a0, a1], create_graph=True)
(a3.square().sum() + a4.square().sum()).backward()
""",
    "a reshape to the same shape is a tensor of its own": """
a0 = gt.tensor(draw(0, (2, 3)), requires_grad=True)
a1 = a0.reshape(2, 3)
a2 = a0.unflatten(1, (3,))
a3 = gt.tensor(draw(3, (3,)), requires_grad=True)
a4 = a3.ravel()
a5 = a3.flatten()
(a0.sum() + a3.sum()).backward()
""",
    "a retained gradient follows a view whose base is written": """
a0 = gt.tensor(draw(0, (3, 2)), requires_grad=True)
a1 = a0.mT
a1.retain_grad()
with gt.no_grad(): a0.flatten().clamp_(-1, 1)
(a1 * ramp(a1)).sum().backward()
""",
    "a retained gradient follows a tensor that is written": """
a0 = gt.tensor(draw(0, (4, 1)), requires_grad=True)
a1 = a0.mean(-1, keepdim=True)
a1.retain_grad()
a1.retain_grad()
a1.mul_(2)
a1.view(2, 2).tanh_()
(a1 * ramp(a1)).sum().backward()
""",
    "a retained gradient is nobody else's": """
a0 = gt.tensor(draw(0, (3,)), requires_grad=True)
a1 = a0.unsqueeze(-1)
a1.retain_grad()
a2 = (a1 * a1 * ramp(a1)).sum()
a3, = gt.autograd.grad(a2, [a0], create_graph=True)
(a2 + a3.square().sum()).backward()
""",
    "a retained gradient is what the hooks made of it": """
a0 = gt.tensor(draw(0, (3,)), requires_grad=True)
a1 = a0 * 2
a1.retain_grad()
a1.register_hook(lambda g: g * 0.5 + 1)
(a1 * ramp(a1)).sum().backward()
""",
    "an input is not kept for the gradient of a weight that needs none": """
a0 = gt.tensor(draw(0, (2, 3)), requires_grad=True)
a1 = gt.tensor(draw(1, (3, 3)))
a2 = gt.tensor(draw(2, (3,)), requires_grad=True)
a3 = F.linear(a0, a1, a2)
with gt.no_grad(): a0.add_(0.25)
(a3 * ramp(a3)).sum().backward()
""",
    "sorted values written in place: their gradient needs the places alone": """
a0 = gt.tensor(draw(0, (2, 3)), requires_grad=True)
a1 = a0.sort(1).values
a1 *= 2
a2 = a0.kthvalue(2, 1).values
a2.sub_(1)
a3 = a0.topk(2, 1).values
a3.mul_(3)
((a1 * ramp(a1)).sum() + (a2 * ramp(a2)).sum() + (a3 * ramp(a3)).sum()).backward()
""",
    "the transpose of a single number is that number": """
a0 = gt.tensor(draw(0, ()), requires_grad=True)
a1 = a0.mT * 2
a1.backward()
""",
}
