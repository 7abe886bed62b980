"""Low-rank adapters beside a product: x (T, K) times A (K, r), then B (r, N), of the adapter that each token takes.

Which token takes which adapter, or none, is not recorded: FLOPs are those of every token taking one, 2 T r K and
2 T r N, an upper bound. The weights read are those of the adapters that some token takes: at least one, at most
min(L, T) of the L that the stacked weights hold; with an even draw L (1 - (1 - 1/L)^T), as with experts of which a
token takes one.

Several projections of one input are slices: one stack of weights each, given as a list, whose type is not recorded. A
is of the type of the input, B of that of the output (the numbers between them are fp32).
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Dims, Signature
from traceanalyzer.analysis.work.experts import Routing
from traceanalyzer.analysis.work.opwork import OpWork, named, value
from traceanalyzer.catalog.op_models import OpModel


def adapters(model: OpModel, sig: Signature) -> OpWork | None:
    """One of the two products of an adapter: stacked weights (L, N, K) or (L, 1, N, K); None where they do not fit."""
    x, out, stack = named(model, sig, "x"), named(model, sig, "out"), named(model, sig, "weights")
    shapes = _shapes(model, sig)
    if x is None or out is None or len(x.shape) not in (2, 3) or not shapes:
        return None
    tokens, inner = x.shape[-2], x.shape[-1]
    count = shapes[0][0]
    if tokens < 1 or any(len(s) not in (3, 4) or s[0] != count or s[-1] != inner or count < 1 for s in shapes):
        return None
    width = sum(shape[-2] for shape in shapes)
    kept = stack.dtype if stack else out.dtype if model.options.get("kept") == "out" else x.dtype
    each = float(width * inner * kept.bytes)
    fewest, even, most = (each * active for active in Routing(tokens, 1, count, count).active)
    passes = 2 if value(model, sig, "adds") in ("True", "1") else 1
    beside = x.bytes + passes * tokens * width * out.dtype.bytes
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=2.0 * tokens * width * inner,
        bytes=beside + even,
        dtype=kept.word,
        m=tokens,
        n=width,
        k=inner,
        batch=1,
        weight_bytes=even,
        weight_bytes_min=fewest,
        weight_bytes_max=most,
        bytes_min=beside + fewest,
        estimated=True,
    )


def _shapes(model: OpModel, sig: Signature) -> tuple[Dims, ...]:
    """The shapes of the stacks, one per slice."""
    at = model.at["weights"]
    single = sig.tensor(at)
    return (single,) if single else sig.tensors(at) or ()
