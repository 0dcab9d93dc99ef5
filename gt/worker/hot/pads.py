"""Before compiling: zeros that are there already are not added again.

The products of `gt.ops.math.padded` pad their operands. In a traced graph, the gradient of logits is a matrix with
zeros behind it (see `gt.ops.nn.cross_entropy_gpu`), which is cut and padded again; and a weight is padded twice.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
WITH_ZEROS = "gt.cross_entropy_backward.default"


def remove_pads(module: Any) -> None:
    """Change the traced graph in place."""
    padded: dict[Any, Any] = {}
    for node in list(module.graph.nodes):
        if node.target is not aten.constant_pad_nd.default:
            continue
        source = node.args[0]
        # an input may be written to between two uses
        same = padded.setdefault((source, tuple(node.args[1])), node) if source.op == "call_function" else node
        same = _uncut(node) or same
        if same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.recompile()


def _uncut(pad: Any) -> Any:
    """The matrix with zeros behind it that was cut before it was padded again; or None."""
    source = pad.args[0]
    while source.target in VIEWS:
        source = source.args[0]
    if source.target is not aten.slice.Tensor or str(source.args[0].target) != WITH_ZEROS:
        return None
    whole = source.args[0]
    return whole if whole.meta["val"].shape == pad.meta["val"].shape else None
