"""``python -m docs.make_names_page`` writes docs/torch_names.md: for each public name of torch, what GT has.

The names are those of gt/torch_names.txt. Whether a name is there is found by looking it up in GT. The tables here say
which names are accepted and ignored, and what differs; the reasons for missing names are those of `gt.missing`.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

import gt
from gt.missing import PAGE as NO_REASON
from gt.missing import _sections, _torch, reason, torch_names
from gt.types import NamedDType

FILE = pathlib.Path(__file__).with_name("torch_names.md")

#: The groups of the table of counts: title -> namespaces.
GROUPS = {
    "functions (`torch`)": ("",),
    "methods of a tensor (`torch.Tensor`)": ("Tensor",),
    "`torch.nn`": ("nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn", "nn.parallel"),
    "`torch.optim`": ("optim", "optim.lr_scheduler", "optim.swa_utils"),
    "`torch.linalg`, `torch.special`, `torch.fft`": ("linalg", "special", "fft"),
    "`torch.autograd`, `torch.amp`": ("autograd", "autograd.function", "autograd.functional", "amp", "cuda.amp"),
    "`torch.distributions`": ("distributions",),
    "`torch.sparse`": ("sparse",),
}
#: Names that GT accepts and that change nothing: namespace -> names, or "*" for all that are there.
IGNORED = {
    "": """
        _assert are_deterministic_algorithms_enabled get_default_device get_deterministic_debug_mode
        get_float32_matmul_precision get_num_interop_threads get_num_threads
        is_deterministic_algorithms_warn_only_enabled is_warn_always_enabled set_default_device
        set_default_tensor_type set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal
        set_num_interop_threads set_num_threads set_warn_always use_deterministic_algorithms channels_last
        channels_last_3d contiguous_format preserve_format strided resolve_conj resolve_neg
    """,
    "Tensor": """
        cpu cuda get_device is_cpu is_cuda is_ipu is_maia is_mkldnn is_mps is_mtia is_pinned is_shared is_vulkan
        is_xla is_xpu pin_memory resolve_conj resolve_neg
    """,
    "accelerator": """
        current_accelerator current_device_idx current_device_index device_count empty_cache is_available
        set_device_idx set_device_index
    """,
    "backends": "*", "backends.cuda": "*", "backends.cudnn": "*", "backends.mkl": "*", "backends.mkldnn": "*",
    "backends.mps": "*", "backends.openmp": "*", "backends.opt_einsum": "*",
    "cuda": """
        CUDAGraph Stream StreamContext current_device device device_count empty_cache graph init ipc_collect
        is_available is_bf16_supported is_current_stream_capturing is_initialized set_device
    """,
    "ao.quantization": "DeQuantStub QuantStub",
    "autograd.graph": "*", "compiler": "*", "distributed": "*", "fx": "*", "jit": "*",
    "library": "register_fake register_kernel register_vmap",
    "nn": "DataParallel parallel",
    "multiprocessing": "get_all_sharing_strategies get_sharing_strategy set_sharing_strategy",
    "nn.attention": "SDPBackend sdpa_kernel",
    "nn.parallel": "*",
    "serialization": "add_safe_globals clear_safe_globals get_safe_globals safe_globals",
}  # fmt: skip
NAMED_DTYPES = [name for name, value in vars(gt).items() if isinstance(value, NamedDType)]
#: Names that do something else than torch's, and what.
DIFFERENT = {
    "bernoulli": "a random draw has no gradient",
    "compile": "runs repeated calls as one fragment; torch's options are accepted ([hot paths](hot_paths.md))",
    "empty": "gives zeros, because workers are shared",
    "empty_like": "gives zeros, because workers are shared",
    "fork": "copies a snapshot to new tensors ([forks](failures.md#forks)); torch's starts a task of TorchScript",
    "from_numpy": "copies the array",
    "get_default_dtype": "always float32",
    "load": "reads safetensors files, and runs no code from a file",
    "save": "writes safetensors files, and runs no code from a file",
    "set_default_dtype": "accepts float32 only",
    "sparse_coo_tensor": "matrices only ([sparse](sparse.md))",
    "sparse.mm": "one of the matrices must be dense",
    "sparse.sum": "the result is dense",
    "unique": "always sorts",
    "vmap": "calls the function once for each example",
    "func.vmap": "calls the function once for each example",
    "func.jacfwd": "uses backward passes",
    "func.jvp": "uses backward passes",
    "Tensor.data": "a view of the value; setting it gives the tensor another value",
    "Tensor.device": "always `gt`",
    "Tensor.numpy": "a copy; waits for the workers",
    "Tensor.layout": "how the tensor is placed on the workers ([sharding](sharding.md))",
    "Tensor.to_sparse": "matrices only ([sparse](sparse.md))",
    "Tensor.to": "a device is accepted and ignored",
    "autograd.Variable": "a tensor",
    **dict.fromkeys(NAMED_DTYPES, "only a name, for comparisons: no tensor has this dtype"),
    "compiler.compile": "as `gt.compile`",
    "multiprocessing.spawn": "one process, run in the program itself; several are refused",
    "nn.attention.flex_attention.flex_attention": "computes all scores; the function gets them as one tensor",
    "cuda.max_memory_allocated": "summed over the workers",
    "cuda.memory_allocated": "summed over the workers",
    "cuda.memory_reserved": "summed over the workers; on CPUs what is allocated",
    "cuda.max_memory_reserved": "summed over the workers; on CPUs what is allocated",
    "hub.load_state_dict_from_url": "needs torch, and gives torch's tensors, which `load_state_dict` accepts",
}

HEAD = """# torch's names in GT

What GT has of {torch}'s public names. `python -m docs.make_names_page` writes this page, and a test compares it with
the code. [Differences from PyTorch](differences.md) explains what differs, [ops](ops.md) lists the instruction set.

A name that is missing raises an error that says so, also in `import gt.x` and `from gt.x import y`.

"""


def text() -> str:
    places = [place for place in _sections() if place != "internal"]
    rows = [_count_row(title, [p for p in group if p in places]) for title, group in GROUPS.items()]
    grouped = {place for group in GROUPS.values() for place in group}
    rows.append(_count_row("other namespaces", [place for place in places if place not in grouped]))
    rows.append(_count_row("**all**", places))
    head = ["| | there | accepted and ignored | different | missing |", "| --- | --- | --- | --- | --- |"]
    parts = [HEAD.format(torch=_torch()), "\n".join([*head, *rows]), "\n\n"]
    parts += ["## Different\n\n| name | in GT |\n| --- | --- |\n"]
    parts += [f"| `{path}` | {how} |\n" for path, how in DIFFERENT.items()]
    parts += [_section(place) for place in places]
    return "".join(parts)


def _count_row(title: str, places: list[str]) -> str:
    kinds = [kind for place in places for kind, _ in _names(place)]
    counts = [kinds.count(kind) for kind in ("there", "ignored", "different", "missing")]
    return f"| {title} | {' | '.join(f'{n:,}' for n in counts)} |"


def _names(place: str) -> Iterator[tuple[str, str]]:
    """Each of torch's names in a namespace, with its kind."""
    internal = torch_names("internal") if not place else frozenset()
    listed = IGNORED.get(place, "").split()
    for name in sorted(torch_names(place) - internal):
        if not _has(place, name):
            yield "missing", name
        elif _path(place, name) in DIFFERENT:
            yield "different", name
        else:
            yield "ignored" if "*" in listed or name in listed else "there", name


def _path(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _has(place: str, name: str) -> bool:
    if place == "Tensor":
        return hasattr(gt.Tensor, name)
    try:
        namespace: Any = importlib.import_module(f"gt.{place}") if place else gt
    except ModuleNotFoundError:
        return False
    return hasattr(namespace, name)


def _section(place: str) -> str:
    names = [*_names(place)]
    there = [name for kind, name in names if kind == "there"]
    ignored = [name for kind, name in names if kind == "ignored"]
    reasons: dict[str, list[str]] = {}
    for kind, name in names:
        if kind == "missing":
            reasons.setdefault(reason(_path(place, name)), []).append(name)
    lines = [f"\n## {f'torch.{place}' if place else 'torch'}\n"]
    for title, group in (("There", there), ("Accepted and ignored", ignored)):
        if group:
            lines.append(f"**{title}** ({len(group)}): {_listed(group)}\n")
    for why, group in reasons.items():
        note = "not built yet" if why == NO_REASON else why
        lines.append(f"**Missing** ({len(group)}; {note}): {_listed(group)}\n")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return f"`{'`, `'.join(names)}`"


if __name__ == "__main__":
    FILE.write_text(text())
