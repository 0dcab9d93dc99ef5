"""Finds op names in quotes outside gt/ops: a fact about an op must be in its entry.

Some places in the code hold names of torch's Python API, and torch names functions and arguments as it names ops. These
places are recognised by their syntax (`_names_api`), and the argument words by `WORDS`.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Collection, Iterator

ROOT = pathlib.Path(__file__).parent.parent.parent
#: variables that list names of torch's API: public names, methods in `gt.functions.methods`
LISTS = {"__all__", "__slots__", "DOCS", "METHODS", "OTHERS"}
#: the same for ATen's functions, in `gt.torch_device`
LISTS |= {
    "GRADIENTS",
    "KERNELS",
    "ONE",
    "SEVERAL",
    "RESHAPING",
    "OVERLOADS",
    "PAIRS",
    "TORCHS_OWN",
    "WHOLE",
    "INDEXING",
}
#: folder or file -> words for arguments and options in it that are names of ops too
WORDS = {
    "gt": {"gt"},  # this package's own name
    "gt/client/tensor/printing.py": {"full"},  # a profile of set_printoptions
    "gt/dispatcher/plan/moves.py": {"block", "term"},  # kinds of steps, done by the op of that name
    "gt/dashboard/feed.py": {"log"},  # a field of an inspection
    "gt/distributions/torch_paths.py": {"binomial", "multinomial", "poisson"},  # torch's modules
    "gt/events": {"cat"},  # a field of a trace
    "gt/functions/order.py": {"linear"},  # interpolation
    "gt/functions/scatter.py": {"add", "amax", "amin", "mean", "prod", "sum"},  # reduce
    # reduction, mode, nonlinearity, activation, rounding_mode, and arguments of modules
    "gt/nn": {
        "dropout", "full", "gelu", "leaky_relu", "linear", "matrix_exp", "mean", "mode", "relu", "sigmoid", "sum",
        "tanh", "threshold", "trunc",
    },
    "gt/optim": {"abs", "cos", "linear", "sum"},  # threshold_mode, anneal_strategy, the state of Adagrad
    "gt/torch_device": {"amin", "linear", "mean", "sum"},  # reductions, interpolation
    "gt/worker": {"all", "cat", "prod", "sum"},  # GT_COMPILE, a field of a trace, reductions of collectives
}  # fmt: skip


def literals(path: pathlib.Path, ops: Collection[str]) -> Iterator[str]:
    """``file:line 'name'`` for each op name in quotes that no exception allows."""
    name = path.relative_to(ROOT).as_posix()
    allowed = {word for place, words in WORDS.items() if _within(name, place) for word in words}
    for line, text in _names(path, ops):
        if text not in allowed:
            yield f"{name}:{line} {text!r}"


def unused_words(paths: list[pathlib.Path], ops: Collection[str]) -> list[str]:
    """The words of `WORDS` that no file uses."""
    used = {place: set() for place in WORDS}
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        texts = {text for _, text in _names(path, ops)}
        for place in WORDS:
            if _within(name, place):
                used[place] |= texts
    return [f"{place}: {word}" for place, words in WORDS.items() for word in sorted(words - used[place])]


def _within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}/")


def _names(path: pathlib.Path, ops: Collection[str]) -> Iterator[tuple[int, str]]:
    """Op names in quotes; a text that is split into words counts as its words."""
    if _within(path.relative_to(ROOT).as_posix(), "gt/ops"):
        return
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parent = parents[node]
            split = isinstance(parent, ast.Attribute) and parent.attr == "split"
            for text in node.value.split() if split else [node.value]:
                if text in ops and not isinstance(parent, ast.JoinedStr) and not _names_api(node, text, parents):
                    yield node.lineno, text


def _names_api(node: ast.AST, text: str, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents[node]
    match parent:
        case ast.Subscript(value=ast.Name(id="OPS")):
            return True
        # the name of an attribute and its value
        case ast.Tuple(elts=[first, second]) if first is node and not isinstance(second, ast.Constant):
            return True
    while parent in parents:
        match parent:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name in LISTS:
                return True
            case ast.AugAssign(target=ast.Name(id="__all__")):
                return True
            # the function's own name, in its errors
            case ast.FunctionDef(name=name) if name.strip("_") == text:
                return True
        parent = parents[parent]
    return False
