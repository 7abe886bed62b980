"""Real calls recorded by PyTorch: the bytes of a model are those of the tensors that went in and came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.work.calls import freeze
from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import OpWork, op_work

torch = pytest.importorskip("torch", reason="torch records the calls")

F = torch.nn.functional
BF16, I32, I64 = torch.bfloat16, torch.int32, torch.int64


def make(*shape: int, dtype: Any = torch.float32) -> Any:
    if dtype.is_floating_point:
        return torch.rand(shape).to(dtype)
    return torch.randint(0, 2, shape).to(dtype)


def tensors(values: Any) -> Iterable[Any]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors(value)


def bytes_of(values: Any) -> int:
    """Bytes to read or write each tensor once; what a stride of 0 repeats is one value."""
    found = 0
    for t in tensors(values):
        count = 1
        for size, stride in zip(t.shape, t.stride(), strict=True):
            count *= size if stride else 1
        found += count * t.element_size()
    return found


def recorded(op: str, function: Callable[..., Any], inputs: tuple[Any, ...], path: Path) -> tuple[Any, OpWork]:
    """The result of a call and the work of the outermost record of an op in it."""
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profiler:
        result = function(*inputs)
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == op]
    assert events, f"{op} was not recorded"
    args = min(events, key=lambda event: event["ts"])["args"]
    fields = (freeze(args["Input Dims"]), tuple(args["Input type"]), tuple(args["Concrete Inputs"]))
    work = op_work(op, Signature(*fields, freeze(args.get("Input Strides", []))))
    assert work is not None, args
    return result, work


#: (op, call, inputs): everything given is read once, everything returned is written once.
PLAIN: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("aten::mean", lambda x: x.mean(), (make(3, 4, 5),)),
    ("aten::mean", lambda x: x.mean((0, 2)), (make(3, 4, 5),)),
    ("aten::mean", lambda x: x.mean(-2, keepdim=True), (make(3, 4, 5, dtype=BF16),)),
    ("aten::mean", lambda x: x.mean(dtype=torch.float32), (make(3, 4, 5, dtype=BF16),)),
    ("aten::sum", lambda x: x.sum(), (make(3, 4, dtype=I32),)),
    ("aten::sum", lambda x: x.sum(1, dtype=torch.float64), (make(3, 4),)),
    ("aten::sum", lambda x: x.sum((0, 1, 2)), (make(3, 4, 5),)),
    ("aten::prod", lambda x: x.prod(1), (make(3, 4),)),
    ("aten::amax", lambda x: x.amax((0, 1)), (make(3, 4, 5),)),
    ("aten::amin", lambda x: x.amin(), (make(3, 4, 5),)),
    ("aten::logsumexp", lambda x: x.logsumexp((1, 2)), (make(3, 4, 5),)),
    ("aten::argmax", lambda x: x.argmax(), (make(3, 4, 5),)),
    ("aten::argmax", lambda x: x.argmax(-1, keepdim=True), (make(3, 4, 5),)),
    ("aten::argmin", lambda x: x.argmin(0), (make(3, 4, 5, dtype=BF16),)),
    ("aten::max", lambda x: x.max(), (make(3, 4, 5),)),
    ("aten::max", lambda x: x.max(2), (make(3, 4, 5),)),
    ("aten::min", lambda x: x.min(0, keepdim=True), (make(3, 4, 5),)),
    ("aten::max", lambda x, y: x.max(y), (make(3, 4), make(4))),
    ("aten::aminmax", lambda x: tuple(x.aminmax(dim=1)), (make(3, 4),)),
    ("aten::any", lambda x: x.any(), (make(3, 4, dtype=torch.bool),)),
    ("aten::all", lambda x: x.all(1), (make(3, 4),)),
    ("aten::linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, dim=1), (make(3, 4),)),
    ("aten::linalg_vector_norm", lambda x: x.norm(), (make(3, 4),)),
    ("aten::var", lambda x: x.var(1), (make(3, 4),)),
    ("aten::std", lambda x: x.std(), (make(3, 4),)),
    ("aten::var_mean", lambda x: torch.var_mean(x, (0, 1)), (make(3, 4),)),
    ("aten::count_nonzero", lambda x: x.count_nonzero(), (make(3, 4),)),
    ("aten::softmax", lambda x: x.softmax(-1), (make(3, 4),)),
    ("aten::log_softmax", lambda x: x.log_softmax(-1, dtype=torch.float32), (make(3, 4, dtype=BF16),)),
    ("aten::native_group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (make(2, 6, 5), make(6), make(6))),
    ("aten::embedding", lambda i: F.embedding(i, make(900, 8)), (make(3, 4, dtype=I64),)),
    ("aten::arange", lambda: torch.arange(3, 17, 4), ()),
    ("aten::arange", lambda: torch.arange(9, dtype=I32), ()),
    ("aten::add", lambda x, y: x + y, (make(3, 1, 5), make(4, 1))),
    ("aten::add", lambda x, y: x + y, (make(3, 4), make(1, 4).expand(3, 4))),
    ("aten::mul", lambda x, y: x * y, (make(3, 4, dtype=BF16), make(3, 4))),
    ("aten::pow", lambda x: x**2, (make(3, 4, dtype=BF16),)),
    ("aten::pow", lambda x, y: x**y, (make(3, 4), make(3, 4))),
    ("aten::div", lambda x, y: x / y, (make(3, 4, dtype=I64), make(3, 4, dtype=I64) + 1)),
    ("aten::clamp", lambda x: x.clamp(0, 1), (make(3, 4, dtype=BF16),)),
    ("aten::clamp", lambda x, y: x.clamp(y), (make(3, 4), make(4))),
    ("aten::where", lambda c, x, y: torch.where(c, x, y), (make(3, 4, dtype=torch.bool), make(3, 4), make(4))),
    ("aten::eq", lambda x, y: x == y, (make(3, 4, dtype=I64), make(4, dtype=I64))),
    ("aten::floor", lambda x: x.floor(), (make(3, 4),)),
    ("aten::exp", lambda x: x.exp(), (make(3, 4, dtype=I32),)),
    ("aten::_to_copy", lambda x: x.to(BF16), (make(3, 4),)),
    ("aten::clone", lambda x: x.clone(), (make(1, 4).expand(3, 4).contiguous(),)),
    ("aten::mm", lambda x, y: x @ y, (make(3, 4), make(4, 5))),
    ("aten::bmm", lambda x, y: x.bmm(y), (make(2, 3, 4), make(2, 4, 5))),
    ("aten::addmm", lambda c, x, y: torch.addmm(c, x, y), (make(5), make(3, 4), make(4, 5))),
    ("aten::mv", lambda x, y: x.mv(y), (make(3, 4), make(4))),
    (
        "aten::_int_mm",
        lambda x, y: torch._int_mm(x, y),
        (make(32, 16, dtype=torch.int8), make(16, 8, dtype=torch.int8)),
    ),
]


def label(case: tuple[str, Any, tuple[Any, ...]]) -> str:
    return case[0].removeprefix("aten::")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", PLAIN, ids=label)
def test_bytes_are_what_goes_in_and_comes_out(case: tuple[str, Any, tuple[Any, ...]], tmp_path: Path) -> None:
    op, function, inputs = case
    table_rows = 8 * 4 * inputs[0].numel() if op == "aten::embedding" else 0
    result, work = recorded(op, function, inputs, tmp_path / "call.json")
    assert work.bytes == bytes_of(inputs) + bytes_of(result) + table_rows


#: (op, call, inputs): passes over its input several times; what goes in and comes out is the least it moves.
SORTS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("aten::sort", lambda x: tuple(x.sort()), (make(3, 50),)),
    ("aten::sort", lambda x: tuple(x.sort(0, descending=True)), (make(3, 50, dtype=BF16),)),
    ("aten::cumsum", lambda x: x.cumsum(1), (make(3, 50),)),
    ("aten::topk", lambda x: tuple(x.topk(0)), (make(3, 50),)),
    ("aten::multinomial", lambda x: x.multinomial(1)[:0], (make(3, 50) + 1,)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SORTS, ids=label)
def test_a_sort_moves_at_least_what_goes_in_and_comes_out(
    case: tuple[str, Any, tuple[Any, ...]], tmp_path: Path
) -> None:
    op, function, inputs = case
    result, work = recorded(op, function, inputs, tmp_path / "call.json")
    assert (work.flops, work.bytes) == (None, None)
    assert work.bytes_min == bytes_of(inputs) + bytes_of(result)


@pytest.mark.filterwarnings("ignore")
def test_a_concatenation_reads_and_writes_every_element(tmp_path: Path) -> None:
    parts = [make(3, 4, dtype=BF16), make(3, 1, dtype=BF16), make(3, 7, dtype=BF16)]
    result, work = recorded("aten::cat", lambda *p: torch.cat(p, 1), tuple(parts), tmp_path / "call.json")
    assert work.untyped_elements == sum(p.numel() for p in parts) + result.numel()
    assert (work.flops, work.bytes) == (0, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "function", "moved"),
    [
        # index read; what it names read and written
        ("aten::index_select", lambda t, i: t.index_select(1, i), 8 * 3 + 2 * 4 * (9 * 3)),
        ("aten::gather", lambda t, i: t.gather(0, i.expand(2, 3)), 8 * 3 + 2 * 4 * 6),
        # a number written to the places; a tensor's values; values added to what stands there
        ("aten::scatter_", lambda t, i: t.scatter_(1, i.expand(2, 3), 1.0), 8 * 3 + 4 * 6),
        ("aten::scatter_add_", lambda t, i: t.scatter_add_(1, i.expand(2, 3), make(9, 5)), 8 * 3 + 3 * 4 * 6),
        ("aten::index_add_", lambda t, i: t.index_add_(1, i, make(9, 3)), 8 * 3 + 3 * 4 * 27),
        ("aten::index_copy_", lambda t, i: t.index_copy_(1, i, make(9, 3)), 8 * 3 + 2 * 4 * 27),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_places_named_by_an_index(op: str, function: Callable[..., Any], moved: int, tmp_path: Path) -> None:
    _, work = recorded(op, function, (make(9, 5), torch.tensor([0, 2, 4])), tmp_path / "call.json")
    assert work.bytes == moved


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "function", "inputs"),
    [
        ("aten::mm", lambda x, y: x @ y, (make(3, 4), make(4, 5))),
        ("aten::bmm", lambda x, y: x.bmm(y), (make(2, 3, 4), make(2, 4, 5))),
    ],
    ids=["mm", "bmm"],
)
def test_flops_are_those_of_pytorchs_own_counter(
    op: str, function: Callable[..., Any], inputs: tuple[Any, ...], tmp_path: Path
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*inputs)
    _, work = recorded(op, function, inputs, tmp_path / "call.json")
    assert work.flops == counter.get_total_flops()


@pytest.mark.filterwarnings("ignore")
def test_attention_without_a_mask_is_what_pytorch_counts(tmp_path: Path) -> None:
    from torch.utils.flop_counter import sdpa_flop_count

    q, k = make(2, 4, 6, 8), make(2, 4, 9, 8)
    op = "aten::_scaled_dot_product_flash_attention_for_cpu"
    _, work = recorded(op, F.scaled_dot_product_attention, (q, k, k), tmp_path / "call.json")
    assert work.flops == sdpa_flop_count(q.shape, k.shape, k.shape)
