"""``torch.compile(model, backend="gt")``: torch's graphs of forward and backward become fragments of GT.

torch's dynamo and AOT autograd make the graphs. The first two calls of a graph run its ops as usual and record what
they emit; then each call sends "run fragment 17 with these inputs" (`gt.client.compile.function`), and the workers
compile the fragment. Importing this module imports torch's compiler, so `gt.torch_device` does not.

A forward pass returns what its backward pass needs, hundreds of values for a model. torch only keeps them, so they do
not become tensors of torch: one tensor stands for all of them, and its storage holds GT's tensors (`_SavedValues`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from gt.client.compile.function import CompiledFunction
from gt.client.tensor.tensor import Tensor
from gt.say import warn
from gt.torch_device import backend
from gt.torch_device.handles import unwrap, wrap

aten = torch.ops.aten
#: A view in a graph may need a copy here: the graph was made for the strides that torch's own kernels give results.
_WITHOUT_STRIDES = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """A backend of `torch.compile`: the graph as a function that runs fragments, also for its gradients."""
    compiler: Any = aot_autograd(
        fw_compiler=_forward, bw_compiler=_fragment, inference_compiler=_inference,
        # as torch's own compiler does it: the backward pass computes views and cheap ops again
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    return compiler(graph, inputs)  # type: ignore[no-any-return]


register_backend(compile_graph, name="gt")
# where a graph is interrupted, torch would go on in the Python code of the device's kernels
trace_rules.add("gt")


def _forward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The function that runs a forward pass. Its results after the first few are kept for the backward pass."""
    context: Any = TracingContext.get()
    return _fragment(graph, inputs, context.fw_metadata.num_forward)


def _fragment(graph: torch.fx.GraphModule, inputs: Sequence[Any], returned: int | None = None) -> Callable[..., Any]:
    """The function that runs a graph of ATen's ops. Results after the first ``returned`` are for the backward pass."""
    for node in graph.graph.nodes:
        node.target = _WITHOUT_STRIDES.get(node.target, node.target)
    graph.recompile()
    missing = missing_overloads(graph)
    if missing:
        names = ", ".join(missing)
        warn(f"torch.compile: the device {backend.NAME!r} has no kernel for {names}: this graph runs op by op")
    return make_boxed_func(_GraphFunction(graph, returned, not missing))


def _inference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The function that runs a graph without gradients. If its results share elements, it runs op by op: a fragment
    returns values, and no views of them. With gradients, torch makes such results itself."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    nodes = {node for node in output.args[0] if isinstance(node, torch.fx.Node)}
    roots = [root for root in map(_viewed, nodes) if root.op != "placeholder"]
    return _fragment(graph, inputs) if len({*roots}) == len(roots) else make_boxed_func(graph.forward)


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose result this one is a view of; itself if it is none."""
    while node.op == "call_function" and (node.target is operator.getitem or _is_view(node.target)):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(target: Any) -> bool:
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def missing_overloads(graph: torch.fx.GraphModule) -> list[str]:
    """The ops of a graph that the device does not have."""
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"} - {operator.getitem}
    return sorted(str(target) for target in targets if not _is_known(target))


def _is_known(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "math", "torch.sym")  # numbers: sizes
    overload: Any = target
    name = overload.name().removeprefix("aten::")
    return name in backend.OVERLOADS or any(backend.has_kernel(name, key) for key in _TORCHS_OWN)


#: Kernels of torch that call other ops.
_TORCHS_OWN = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")


class _SavedValues(list[Any]):
    """What a forward pass keeps for its backward pass, on the storage of the tensor that stands for all of it."""

    __slots__ = ()


class _GraphFunction:
    """A graph as a function of torch's tensors. If ``replays``, it is recorded and replayed as a function of GT's."""

    def __init__(self, graph: torch.fx.GraphModule, returned: int | None, replays: bool) -> None:
        self._graph, self._returned = graph, returned
        self._call: Callable[[list[Any]], Any] = (
            CompiledFunction(self._run).call_tensors if replays else lambda handles: self._run(*handles)
        )

    def __call__(self, *args: Any) -> Any:
        handles, arguments = _handles(args)
        results = self._call(handles)
        returned = len(results) if self._returned is None else self._returned
        outputs = [_output(y, arguments) for y in results[:returned]]
        return outputs if returned == len(results) else outputs + _saved(results[returned:], arguments)

    def _run(self, *handles: Any) -> Any:
        """Run the ops of the graph one by one."""
        with torch.no_grad():
            results = self._graph.forward(*[wrap(x) if isinstance(x, Tensor) else x for x in handles])
        return [unwrap(y) if isinstance(y, torch.Tensor) else y for y in results]


def _handles(args: tuple[Any, ...]) -> tuple[list[Any], dict[int, Any]]:
    """GT's tensors behind the arguments of a graph, with its other arguments as they are; and by the id of each the
    argument, if it stands for that one alone."""
    try:
        handles: list[Any] = [x.untyped_storage()._gt for x in args]
    except (AttributeError, NotImplementedError):  # a number, or a tensor without a value
        handles = [unwrap(x) if isinstance(x, torch.Tensor) else x for x in args]
    arguments = dict(zip(map(id, handles), args, strict=True))
    saved = next((x for x in handles if type(x) is _SavedValues), None)
    if saved is not None:
        del arguments[id(saved)]
        values = iter(saved)
        handles = [next(values) if x is saved else x for x in handles]
    return handles, arguments


def _output(y: Any, arguments: dict[int, Any]) -> Any:
    """A result as torch takes it: an argument that is returned stays the same tensor."""
    if not isinstance(y, Tensor):
        return y
    x = arguments.get(id(y))
    return wrap(y) if x is None else x


def _saved(results: list[Any], arguments: dict[int, Any]) -> list[Any]:
    """Results for the backward pass alone: one tensor stands for all that are not arguments or numbers."""
    carrier = backend.new_tensor((0,), torch.float32)
    if backend.has_saved_tensor_hooks():  # the program looks at what is saved
        return [carrier if y is None else _output(y, arguments) for y in results]
    outputs = [carrier if y is None else arguments.get(id(y), carrier) if isinstance(y, Tensor) else y for y in results]
    values = [y for y, x in zip(results, outputs, strict=True) if x is carrier]
    carrier.untyped_storage()._gt = _SavedValues(values)  # type: ignore[attr-defined]
    return outputs
