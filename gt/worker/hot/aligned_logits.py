"""Before compiling: logits get rows that start at aligned addresses.

A vocabulary of 50,257 makes rows of an odd number of bytes. Products of such matrices are slow; the compiler pads them,
which copies them. Where logits go into a cross entropy only, their product is written with aligned rows at once. The
gradient of the cross entropy has such rows too (see `gt.ops.nn.cross_entropy_gpu`).
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
LOSSES = ("gt.cross_entropy.default", "gt.cross_entropy_backward.default")
#: Rows that start at a multiple of this many bytes are aligned.
ALIGNED_BYTES = 16


def align_logits(module: Any) -> None:
    """Change the traced graph in place."""
    products = {_source(node.args[LOSSES.index(str(node.target))]) for node in module.graph.nodes if _is_loss(node)}
    for node in products:
        if node.target is aten.mm.default and _is_odd(node.meta["val"]) and _only_compared(node):
            with module.graph.inserting_before(node):
                target = torch.ops.gt.product_with_aligned_rows.default
                product = module.graph.call_function(target, node.args)
            node.replace_all_uses_with(product)
            module.graph.erase_node(node)
    module.recompile()


def _is_loss(node: Any) -> bool:
    return str(node.target) in LOSSES


def _source(node: Any) -> Any:
    """The node whose memory this one views."""
    while node.target in VIEWS:
        node = node.args[0]
    return node


def _is_odd(x: Any) -> bool:
    return bool(x.itemsize == 2 and x.shape[1] * x.itemsize % ALIGNED_BYTES)


def _only_compared(node: Any) -> bool:
    """Whether only losses use it, directly or as a view with the same rows."""
    columns = node.meta["val"].shape[-1]
    return all(
        _is_loss(user) or (user.target in VIEWS and user.meta["val"].shape[-1:] == (columns,) and _only_compared(user))
        for user in node.users
    )
