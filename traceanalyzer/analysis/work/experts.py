"""Mixture of experts: T tokens, each through k of E experts of an FFN of width f.

FLOPs are those of the assignments, 2 h f per matrix: 6 T k h f for a gated FFN. Rows that a kernel adds as padding are
not work. The weights read are those of the experts that at least one token takes, and which tokens take which experts
is not recorded: at least min(k, E) experts are active (all tokens agree), at most min(E, T k), and E (1 - (1 - k/E)^T)
when every token draws k experts evenly. Bytes are those of the even draw, marked `estimated`; real routing is uneven,
so they lean high. `weight_bytes_min` and `weight_bytes_max` hold the bounds. Activations between the two matrix
products stay inside such an op and are not counted, unless its products are known to be kernels that stand `apart`:
then each writes its result, and the sum over a token's experts is another kernel's. The shared expert and the router
are ops of their own.

With experts spread over several devices only some of the assignments fall to this one: their number is then an estimate
as well. What could be wrong: an op whose k or E cannot be told from its arguments answers "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.dtypes import BOOL, INT, wider
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, number, operand, value, work
from traceanalyzer.analysis.work.quantized import FEWEST_BITS, MOST_BITS
from traceanalyzer.catalog.op_models import OpModel


@dataclass(frozen=True, slots=True)
class Routing:
    """`tokens` each take `chosen` of `total` experts, of which `local` are on this device."""

    tokens: int
    chosen: int
    local: int
    total: int

    @property
    def assignments(self) -> float:
        """Token-expert pairs on this device; of experts spread over devices, its even share."""
        return self.tokens * self.chosen * self.local / self.total

    @property
    def active(self) -> tuple[float, float, float]:
        """Local experts that some token takes: at least, under an even draw, at most."""
        most = min(self.local, self.tokens * self.chosen)
        fewest = min(self.chosen, self.local) if self.local == self.total and self.tokens else 0
        even = self.local * (1.0 - (1.0 - self.chosen / self.total) ** self.tokens)
        return float(fewest), min(max(even, fewest), most), float(most)


def experts(model: OpModel, sig: Signature) -> OpWork | None:
    """A whole layer of experts (`stage` 1 or 2: one of its two products), weights (E, rows, columns) per expert."""
    x, first, second = named(model, sig, "x"), named(model, sig, "w1"), named(model, sig, "w2")
    if x is None or first is None or second is None or len(x.shape) < 2 or min(len(first.shape), len(second.shape)) < 3:
        return None
    if first.shape[0] != second.shape[0] or first.shape[0] < 1:
        return None
    routing = _routing(model, sig, x, first.shape[0])
    sizes = _sizes(model, sig, x, first, second)
    if routing is None or sizes is None:
        return None
    hidden, up_rows, inner = sizes
    stage = model.options.get("stage")
    multiplied = hidden * ((up_rows if stage != 2 else 0) + (inner if stage != 1 else 0))
    weights = [w for w, number in ((first, 1), (second, 2)) if stage in (None, number)]
    per_expert = (sum(w.bytes for w in weights) + _scales(model, sig, first.shape[0])) / first.shape[0]
    out, size = named(model, sig, "out"), max(x.dtype.bytes, 2)
    written = float(out.bytes if out else routing.tokens * hidden * size)
    if "apart" in model.options:  # the first product's result, the second's operand and its result of each assignment
        written = routing.assignments * (up_rows + inner + hidden) * size
    flops = 2.0 * routing.assignments * multiplied
    return _read(model, routing, per_expert, flops, x.bytes + written, x, first)


def grouped(model: OpModel, sig: Signature) -> OpWork | None:
    """Rows sorted by expert times each expert's weight: a (rows, K) with b (E, K, N), or (E, N, K) where `either`.

    Which rows belong to which expert is not recorded: every row is one assignment. Where the rows are grouped already,
    a (E, rows, K), every weight is read.
    """
    a, b, out = named(model, sig, "a"), named(model, sig, "b"), named(model, sig, "out")
    if a is None or b is None or len(b.shape) != 3 or len(a.shape) not in (2, 3):
        return None
    count, inner, n = b.shape
    if "either" in model.options and inner != a.shape[-1]:
        inner, n = n, inner
    if inner != a.shape[-1] or count < 1 or (out is not None and out.shape[-1:] != (n,)):
        return None
    rows, scale = numel(a.shape[:-1]), named(model, sig, "scale_b")
    weights = b.bytes + (scale.bytes if scale else 0)
    moved = a.bytes + rows * n * (out.dtype.bytes if out else max(a.dtype.bytes, 2))
    flops = 2.0 * rows * n * inner * int(model.options.get("values", a.dtype.values))
    if len(a.shape) == 2:
        return _read(model, Routing(rows, 1, count, count), weights / count, flops, moved, a, b)
    if a.shape[0] != count:
        return None
    known = work(model, flops, moved + weights, wider(a.dtype, b.dtype).word)
    return replace(known, m=rows, weight_bytes=float(weights))


def packed(model: OpModel, sig: Signature) -> OpWork | None:
    """One product of experts whose weights are packed: x (rows, K), N from `n` or the output's last dimension.

    Two versions with as many arguments are told apart by where a truth value stands (`flag`, `flag_later`).
    """
    x, weight, out = named(model, sig, "x"), named(model, sig, "w1"), named(model, sig, "out")
    form = _form(model, sig)
    chosen = None if form is None else number(model, sig, f"top_k{form}")
    n = out.shape[-1] if out and out.shape else number(model, sig, f"n{form}")
    if x is None or weight is None or len(x.shape) != 2 or len(weight.shape) < 2 or not n or not chosen:
        return None
    (rows, inner), count = x.shape, weight.shape[0]
    if (
        not 1 <= chosen <= count
        or n < 1
        or not FEWEST_BITS <= 8 * weight.bytes / max(count * n * inner, 1) <= MOST_BITS
    ):
        return None
    read = weight.bytes + sum(o.bytes for o in (named(model, sig, "scale"), named(model, sig, f"zeros{form}")) if o)
    moved = x.bytes + rows * chosen * n * x.dtype.bytes
    flops = 2.0 * rows * chosen * n * inner
    return _read(model, Routing(rows, chosen, count, count), read / count, flops, moved, x, weight)


def _form(model: OpModel, sig: Signature) -> str | None:
    """The suffix of the version's positions; None where a truth value stands in neither's place."""
    if "flag" not in model.at:
        return ""
    forms = (form for form in ("", "_later") if value(model, sig, f"flag{form}") in ("True", "False"))
    return next(forms, None)


def _read(
    model: OpModel, routing: Routing, per_expert: float, flops: float, moved: float, x: Operand, weight: Operand
) -> OpWork:
    """The work of experts with the weights of the active ones."""
    fewest, even, most = (n * per_expert for n in routing.active)
    dtype = wider(x.dtype, weight.dtype).word or model.options.get("dtype")
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=flops,
        bytes=moved + even,
        dtype=None if dtype is None else str(dtype),
        m=routing.tokens,
        weight_bytes=even,
        weight_bytes_min=fewest,
        weight_bytes_max=most,
        bytes_min=moved + fewest,
        estimated=fewest != most or routing.local != routing.total,
    )


def _routing(model: OpModel, sig: Signature, x: Operand, local: int) -> Routing | None:
    routes = named(model, sig, "routes")
    tokens = x.shape[0]
    chosen = routes.shape[-1] if routes and len(routes.shape) == 2 else number(model, sig, "top_k")
    total = number(model, sig, "experts") or ("maps" in model.options and _mapped(sig, local)) or local
    if model.options.get("stage") == 2:
        chosen = x.shape[1] if len(x.shape) == 3 else None
    if chosen is None or local < 1 or not 1 <= chosen <= total or total < local:
        return None
    return Routing(tokens, chosen, local, total)


def _mapped(sig: Signature, local: int) -> int | None:
    """The number of all experts, where an argument maps them to those of this device: a list of integers that long."""
    for index in range(5, len(sig.dims)):
        found = operand(sig, index)
        if found and len(found.shape) == 1 and found.dtype.category in (BOOL, INT) and found.shape[0] > local:
            return found.shape[0]
    return None


def _sizes(model: OpModel, sig: Signature, x: Operand, first: Operand, second: Operand) -> tuple[int, int, int] | None:
    """(h, rows of the first product, f). Packed weights hold several values per element, as many as h tells."""
    count = first.shape[0]
    out = named(model, sig, "out")
    hidden = out.shape[-1] if out and out.shape and model.options.get("stage") is None else second.shape[1]
    if len(second.shape) != 3:
        hidden = x.shape[-1]
    values = hidden // first.shape[-1] if len(first.shape) == 3 and first.shape[-1] else 1
    if count < 1 or hidden < 1 or (len(first.shape) == 3 and hidden != first.shape[-1] * values):
        return None
    per_first, per_second = numel(first.shape) // count * values, numel(second.shape) // count * values
    if per_first % hidden or per_second % hidden:
        return None
    rows, inner = per_first // hidden, per_second // hidden
    return (hidden, rows, inner) if rows in (inner, 2 * inner) else None


def _scales(model: OpModel, sig: Signature, count: int) -> int:
    """Bytes of what else is kept per expert: scales, zeros and biases, of any shape that begins with E."""
    taken = set(model.at.values())
    others = (operand(sig, index) for index in range(len(sig.dims)) if index not in taken)
    return sum(o.bytes for o in others if o and len(o.shape) > 1 and o.shape[0] == count)
