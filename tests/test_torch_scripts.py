"""Names of torch that scripts use and that have little or nothing to do here, and the errors for missing names."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import gt
import gt.missing
from docs import make_names_page
from tests.support.worlds import session

__all__ = ["session"]

ROOT = pathlib.Path(__file__).parent.parent

# -- names that are accepted ------------------------------------------------------------------

#: Lines of scripts. Each runs as it is, in torch as well.
LINES = """
t.backends.cudnn.benchmark = True; assert t.backends.cudnn.benchmark
t.backends.cudnn.deterministic = True
t.backends.cuda.matmul.allow_tf32 = True; assert t.backends.cuda.matmul.allow_tf32
assert not t.backends.mps.is_available() and not t.backends.mps.is_built()
with t.backends.cudnn.flags(enabled=False, benchmark=True): pass
t.backends.cuda.enable_flash_sdp(True); assert t.backends.cuda.flash_sdp_enabled()
assert not t.jit.is_scripting() and not t.jit.is_tracing()
f = lambda x: x; assert t.jit.ignore(f) is f and t.jit.unused(f) is f and t.jit.export(f) is f
f = lambda x: x; assert t.jit.ignore(drop=True)(f) is f
x: t.jit.Final[int] = 3
assert all(map(callable, (t.jit._overload, t.jit._overload_method, t.jit._script_if_tracing)))
assert t.jit.annotate(int, 3) == 3 and t.jit.isinstance([1], list[int])
t.fx.wrap("len")
assert t.distributed.get_world_size is not None and not t.distributed.is_initialized()
if t.distributed.is_available() and t.distributed.is_initialized(): t.distributed.barrier()
t.set_float32_matmul_precision("high"); assert t.get_float32_matmul_precision() == "high"
t.use_deterministic_algorithms(True); assert t.are_deterministic_algorithms_enabled()
t.use_deterministic_algorithms(True, warn_only=True); assert t.get_deterministic_debug_mode() == 1
t.use_deterministic_algorithms(True, warn_only=True); assert t.is_deterministic_algorithms_warn_only_enabled()
t.set_deterministic_debug_mode("default"); assert t.get_deterministic_debug_mode() == 0
t.set_default_device("cpu"); assert t.get_default_device().type == "cpu"; t.set_default_device(None)
t.set_num_threads(2); assert t.get_num_threads() == 2
t._assert(True, "fine")
t.set_default_tensor_type(t.FloatTensor)
t.set_warn_always(False); assert not t.is_warn_always_enabled()
t.cuda.empty_cache(); assert t.cuda.device_count() == 0 and not t.cuda.is_initialized()
assert t.accelerator.is_available() == (t.accelerator.current_accelerator() is not None)
t.serialization.add_safe_globals([int]); t.serialization.clear_safe_globals()
with t.serialization.safe_globals([int]): pass
from {t}.autograd import Variable; assert Variable(t.ones(2), requires_grad=True).requires_grad
from {t}.cuda.amp import GradScaler, autocast
from {t}.nn.parallel import DistributedDataParallel as DDP, DataParallel
import {t}.nn.modules.conv as conv; assert conv.Conv2d is t.nn.Conv2d
from {t}.nn.modules.utils import _pair, _triple; assert _pair(3) == (3, 3) and _triple([1, 2, 3]) == (1, 2, 3)
from {t}.nn.modules.batchnorm import _BatchNorm; assert isinstance(t.nn.BatchNorm2d(3), _BatchNorm)
from {t}.nn.modules import Linear, Module; assert Linear is t.nn.Linear
import {t}.backends.cudnn as cudnn; cudnn.benchmark = False
from {t}.hub import HASH_REGEX, urlparse; assert HASH_REGEX.search("net-5c106cde.pth")[1] == "5c106cde"
from {t}.ao.quantization import DeQuantStub, QuantStub; assert DeQuantStub()(QuantStub()(t.ones(2))).sum() == 2
import {t}.multiprocessing as mp; assert mp.cpu_count() > 0 and mp.get_sharing_strategy() == "file_descriptor"
from {t}.jit.annotations import Dict, List, Optional; assert List[int].__origin__ is list
f = lambda x: x + 1; assert t.compiler.disable(f)(1) == t.compiler.disable(recursive=False)(f)(1) == 2
assert not t.compiler.is_compiling() and not t.compiler.is_exporting() and not t.compiler.is_dynamo_compiling()
with t.autograd.graph.save_on_cpu(): (t.ones(2, requires_grad=True) * 2).sum().backward()
with t.nn.attention.sdpa_kernel([t.nn.attention.SDPBackend.MATH]): pass
def f(g: t.cuda.CUDAGraph | None, s: t.cuda.Stream | None, c: t.cuda.StreamContext | None) -> t.cuda.graph | None: ...
assert not isinstance(3, t.fx.Proxy)
from {t}.utils._pytree import tree_map; assert tree_map(t.numel, {"a": [t.ones(2)]}) == {"a": [2]}
assert t.float8_e5m2.itemsize == 1 and t.uint16.itemsize == 2 and t.chalf is t.complex32 and t.complex32.is_complex
assert t.float8_e5m2.is_floating_point and t.float8_e5m2.is_signed and not t.uint64.is_signed and not t.bool.is_signed
from {t}.nn.modules.conv import _ConvNd; assert isinstance(t.nn.Conv1d(1, 1, 1), _ConvNd)
""".strip().splitlines()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("line", LINES)
def test_lines_of_scripts(session: Any, line: str) -> None:
    switches = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.get_num_threads()
    # torch's own test tools, which other tests import, forbid to set switches outside of this
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        try:
            for module in (torch, gt):
                exec(line.replace("{t}", module.__name__), {"t": module, "__name__": "script"})
        finally:
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, threads = switches
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(False)
            torch.set_float32_matmul_precision("highest")
            torch.backends.cuda.matmul.allow_tf32 = False


REFUSED = [
    ("gt.set_float32_matmul_precision('low')", "one of 'highest', 'high', 'medium'"),
    ("gt.set_deterministic_debug_mode(3)", r"set_deterministic_debug_mode\(3\): 0, 1, 2"),
    ("gt.set_default_device('moon')", "'moon' is not a device"),
    ("gt._assert(False, 'no')", "no"),
    ("gt.set_default_tensor_type(gt.DoubleTensor)", "float32"),
    (
        "gt.ones(2, dtype=gt.float8_e4m3fn)",
        "gt.float8_e4m3fn is only a name: GT has no tensors of this dtype; there are",
    ),
    ("gt.ones(2).to(gt.uint16)", "gt.uint16 is only a name"),
    ("gt.ones(2).to(dtype=gt.complex32)", "gt.complex32 is only a name"),
    ("gt.nn.Linear(2, 2, dtype=gt.float8_e5m2)", "gt.float8_e5m2 is only a name"),
    ("gt.nn.Linear(2, 2).to(gt.float8_e5m2)", "gt.float8_e5m2 is only a name"),
    ("gt.ones(2).type(gt.float8_e5m2)", "gt.float8_e5m2 is only a name"),
    ("gt.finfo(gt.float4_e2m1fn_x2)", "for floating dtypes"),
    ("gt.cuda.CUDAGraph()", "gt.cuda.CUDAGraph: the client has no device; GT_AUTO_COMPILE=1 lets workers"),
    ("gt.cuda.graph(None)", "gt.cuda.graph: the client has no device"),
    ("gt.cuda.StreamContext(None)", "gt.cuda.StreamContext: the client has no device"),
    ("gt.cuda.Stream()", "gt.cuda.Stream: the client has no device; workers order their work themselves"),
    ("gt.multiprocessing.spawn(len, nprocs=2)", r"spawn\(nprocs=2\): one program has all workers"),
    ("gt.fx.Proxy()", "gt.fx.Proxy: nothing is traced"),
]


@pytest.mark.parametrize(("expression", "text"), REFUSED)
def test_mistakes_are_refused(session: Any, expression: str, text: str) -> None:
    with pytest.raises((gt.GtError, AssertionError), match=text):
        eval(expression)


def test_one_process_is_run_here() -> None:
    calls: list[tuple[int, str]] = []
    gt.multiprocessing.spawn(lambda rank, text: calls.append((rank, text)), args=("a",))
    assert calls == [(0, "a")]
    gt.multiprocessing.set_sharing_strategy("file_system")
    assert gt.multiprocessing.get_all_sharing_strategies() == {"file_descriptor"}
    assert not hasattr(gt.multiprocessing, "not_there")


def test_names_of_torchs_tracer_have_no_effect() -> None:
    from gt._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    gt._dynamo.config.cache_size_limit = 64
    for mark in (gt._dynamo.mark_static, gt._dynamo.mark_static_address, gt._dynamo.mark_dynamic):
        assert mark(gt.Tensor) is None
    with TransformGetItemToIndex():
        assert gt._dynamo.disable(len) is gt._dynamo.allow_in_graph(len) is len
    assert gt.version.cuda is gt.version.hip is None


@pytest.mark.parametrize("name", ["DataParallel", "parallel.DistributedDataParallel"])
def test_parallel_wrappers_pass_through(session: Any, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    gt.nn.parallel._explained.clear()
    net = gt.nn.Linear(3, 2)
    wrapper: Any = eval(f"gt.nn.{name}")
    model = wrapper(net, device_ids=[0])
    assert wrapper(net).module is net
    assert capfd.readouterr().err.count("only calls its module; gt.auto_shard() uses all workers") == 1
    assert model(gt.ones(1, 3)).tolist() == net(gt.ones(1, 3)).tolist()
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert next(model.parameters()) is net.weight
    assert model.train(False).module.training is False
    if name != "DataParallel":
        with model.no_sync():
            model(gt.ones(1, 3)).sum().backward()
        assert net.bias.grad.tolist() == [1, 1]
    assert gt.nn.parallel.data_parallel(net, gt.ones(1, 3)).shape == (1, 2)


def test_scripting_returns_its_argument(session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    gt.jit._warned = False
    net = gt.nn.Linear(3, 2)
    assert gt.jit.script(net) is net
    assert gt.jit.trace(net, gt.ones(3)) is net
    assert gt.jit.freeze(gt.jit.optimize_for_inference(net)) is net
    assert capfd.readouterr().err.count("returns its argument unchanged; gt.compile makes repeated calls fast") == 1


def test_memory_figures_come_from_the_workers(session: Any) -> None:
    gt.cuda.reset_peak_memory_stats()
    before = gt.cuda.memory_allocated()
    x = gt.ones(1000, 1000)
    assert gt.cuda.memory_allocated() - before == 4_000_000
    del x
    assert gt.cuda.memory_allocated() == before
    assert gt.cuda.max_memory_allocated() >= before + 4_000_000
    gt.cuda.reset_peak_memory_stats()
    assert gt.cuda.max_memory_allocated() < before + 4_000_000
    assert gt.accelerator.memory_allocated() == gt.cuda.memory_reserved() == before
    assert gt.cuda.mem_get_info() == (0, 0)  # these workers have no GPU
    assert re.fullmatch(r"worker 0 \(cpu\): [\d,]+ bytes, at most [\d,]+", gt.cuda.memory_summary())


def test_every_report_of_a_worker_counts_for_the_peaks(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (stats,) = session.worker_stats()
    reports = iter([(50, 90, 10, 20), (30, 60, 30, 60), (40, 70, 40, 70), (5, 70, 5, 70), (6, 70, 6, 70)])

    def ask(*_: Any) -> Any:
        figures = zip(("allocated_peak", "reserved_peak", "allocated", "reserved"), next(reports), strict=True)
        return SimpleNamespace(workers=[msgspec.structs.replace(stats, memory=dict(figures))])

    monkeypatch.setattr(session.replies, "ask", ask)
    gt.cuda.reset_peak_memory_stats()
    gt.debug.get_worker_stats()  # the peaks that it takes away from the worker are not lost
    assert gt.cuda.max_memory_allocated() == 40
    assert gt.cuda.memory_reserved() == 70
    assert gt.cuda.max_memory_reserved() == 70


# -- anomaly detection ------------------------------------------------------------------------


def nan_gradient() -> None:
    x = gt.zeros(2, requires_grad=True)
    y = gt.sqrt(x) * 0  # the gradient of sqrt at 0 is inf, and inf * 0 is NaN
    y.sum().backward()


def test_anomaly_detection_names_the_line(session: Any) -> None:
    nan_gradient()
    with gt.autograd.detect_anomaly():
        assert gt.is_anomaly_enabled()
        with pytest.raises(
            RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output"
        ) as caught:
            nan_gradient()
    assert "y = gt.sqrt(x) * 0" in str(caught.value)
    assert not gt.is_anomaly_enabled()
    nan_gradient()
    with gt.autograd.set_detect_anomaly(True, check_nan=False):
        assert not gt.is_anomaly_check_nan_enabled()
        nan_gradient()
    gt.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(gt.GradError):
            nan_gradient()
        (gt.ones(2, requires_grad=True) * 2).sum().backward()  # gradients without NaN pass
    finally:
        gt.autograd.set_detect_anomaly(False)
    nan_gradient()


def test_anomaly_detection_sees_functions_of_users(session: Any) -> None:
    class Wrong(gt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * float("nan")

    with gt.autograd.detect_anomaly(), pytest.raises(gt.GradError, match=r"'WrongBackward' returned nan values"):
        Wrong.apply(gt.ones(2, requires_grad=True)).sum().backward()


# -- imports of missing names -----------------------------------------------------------------

IMPORTS = [
    ("import gt.nn.qat", "gt.nn.qat is not there yet (torch.nn.qat); GT has no quantized tensors"),
    ("import gt.nn.paralel", "did you mean gt.nn.parallel?"),
    ("from gt.optim import Adamm", "did you mean gt.optim.Adam?"),
    ("from gt.linalg import ldl_solve", "gt.linalg.ldl_solve is not there yet (torch.linalg.ldl_solve)"),
    ("from gt.cuda.amp import common", "gt.cuda.amp.common is not there yet (torch.cuda.amp.common)"),
    ("import gt.amp.autocst", "did you mean gt.amp.autocast?"),
    ("import gt.fft.x", "gt.fft.x does not exist, and torch 2.13.0 has no public name torch.fft.x"),
    ("import gt.fx.experimental", "gt.fx.experimental is not there yet (torch.fx.experimental)"),
    ("from gt import export", "gt.export is not there yet (torch.export); GT runs a program's Python as it is"),
    ("import gt.export.graph", "gt.export is not there yet (torch.export)"),
    ("from gt.distributed import all_reduce", "one program has all workers"),
    ("import gt.clients", "gt.clients does not exist, and torch 2.13.0 has no public name torch.clients"),
    ("from gt.nn.functional import _private", "gt.nn.functional._private does not exist"),
]


@pytest.mark.parametrize(("line", "text"), IMPORTS)
def test_an_import_gives_the_text_of_attribute_access(line: str, text: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(line)
    assert text in str(caught.value)


def test_a_missing_module_is_not_found() -> None:
    assert importlib.util.find_spec("gt.export") is None
    assert not hasattr(gt, "export")
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("gt.export")
    assert caught.value.name == "gt.export"


def torch_has(path: str) -> bool:
    try:
        importlib.import_module(f"torch.{path}")
    except ImportError:
        value: Any = torch
        for part in path.split("."):
            value = getattr(value, part, None)
        return value is not None
    return True


def _has(path: str) -> bool:
    """Whether GT has a name, such as those of Python's `multiprocessing` in ``gt.multiprocessing``."""
    place, _, name = path.rpartition(".")
    return hasattr(importlib.import_module(f"gt.{place}"), name)


@pytest.mark.skipif(torch.__version__.split("+")[0] != gt.missing._torch().split()[1], reason="another torch's names")
def test_no_message_claims_that_torch_lacks_what_it_has() -> None:
    places = [place for place in gt.missing._sections() if place not in ("internal", "Tensor")]
    for place in places:
        namespace = importlib.import_module(f"torch.{place}") if place else torch
        public = getattr(namespace, "__all__", ())
        public = [name for name in public if not name.startswith("_") and hasattr(namespace, name)]
        names = gt.missing.torch_names(place)
        wrong = [name for name in public if name not in names and not (place and _has(f"{place}.{name}"))]
        assert not wrong, place
    assert torch_has("nn.qat")
    assert torch_has("utils.tensorboard")


def test_pages_that_messages_name_exist() -> None:
    texts = [*gt.missing.REASONS.values(), gt.missing.PAGE]
    pages = {page for text in texts for page in re.findall(r"docs/\w+\.md", text)}
    assert len(pages) > 3
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_every_place_has_its_names() -> None:
    """A namespace that GT and torch have is in the list of torch's names, so that its errors know them."""
    for path in sorted((ROOT / "gt").rglob("*.py")):
        place = ".".join(path.relative_to(ROOT / "gt").with_suffix("").parts).removesuffix("__init__").rstrip(".")
        listed = re.search(r'_absent\("([\w.]+)"\)', path.read_text())
        if listed is not None:
            assert listed[1] == place
            assert place in gt.missing._sections()


# -- the page ---------------------------------------------------------------------------------


@pytest.mark.skipif(torch.__version__.split("+")[0] != gt.missing._torch().split()[1], reason="another torch's names")
def test_the_page_of_names_is_current() -> None:
    code = "from docs import make_names_page; print(make_names_page.text(), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert make_names_page.FILE.read_text() == made, "run python -m docs.make_names_page"


def test_the_tables_of_the_page_name_what_is_there() -> None:
    for path in make_names_page.DIFFERENT:
        place, _, name = path.rpartition(".")
        assert make_names_page._has(place, name), path
        assert name in gt.missing.torch_names(place), path
    for place, names in make_names_page.IGNORED.items():
        assert [n for n in names.split() if n != "*" and not make_names_page._has(place, n)] == []
