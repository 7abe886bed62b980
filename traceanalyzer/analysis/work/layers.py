"""The fused parts of a transformer layer: norms, softmax, rotary embedding, gated activation, quantisation.

All are bound by memory at the sizes of language models; their FLOPs follow a convention (so many per element, stated
in the catalogue), so compare bytes, not FLOPs, with other tools.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Signature, integer, numel
from traceanalyzer.analysis.work.dtypes import FP32, scalar_type
from traceanalyzer.analysis.work.opwork import OpWork, named, value
from traceanalyzer.catalog.op_models import OpModel

SOFTMAX_FLOPS = 5  # maximum, subtraction, exponential, sum, division
ROPE_FLOPS = 3  # per element: four products and two sums turn a pair


def _work(model: OpModel, flops: float, moved: float, dtype: str | None) -> OpWork:
    return OpWork(model.kind, model.category, model.role, float(flops), float(moved), dtype)


def norm(model: OpModel, sig: Signature) -> OpWork | None:
    """A norm over the last dimensions; with a residual, both the sum and the normed value are written."""
    x = named(model, sig, "x")
    if x is None or not x.shape:
        return None
    size = numel(x.shape)
    out = named(model, sig, "out")
    moved = x.bytes + size * (out or x).dtype.bytes
    residual = named(model, sig, "residual")
    if "residual" in model.at and residual is None:
        return None
    moved += 2 * residual.bytes if residual else 0
    moved += sum(o.bytes for o in (named(model, sig, "weight"), named(model, sig, "bias")) if o)
    return _work(model, size * int(model.options["flops_per_element"]), moved, x.dtype.word)


def softmax(model: OpModel, sig: Signature) -> OpWork | None:
    """Softmax: input once, output once (wider where the op casts), 5 FLOPs per element."""
    x = named(model, sig, "x")
    if x is None:
        return None
    written = scalar_type(value(model, sig, "dtype")) or x.dtype
    if value(model, sig, "to_float") == "True":
        written = FP32
    size = numel(x.shape)
    return _work(model, SOFTMAX_FLOPS * size, x.bytes + size * written.bytes, x.dtype.word)


def rope(model: OpModel, sig: Signature) -> OpWork | None:
    """Rotary embedding in place on q (and k): the rotated elements read and written, one table row per token."""
    q, k = named(model, sig, "q"), named(model, sig, "k")
    table, positions = named(model, sig, "table"), named(model, sig, "positions")
    if q is None or table is None or positions is None or len(table.shape) != 2:
        return None
    head = integer(value(model, sig, "head_size"))
    share = min(table.shape[1] / head, 1.0) if head and head > 0 else 1.0
    rotated = sum(numel(o.shape) for o in (q, k) if o) * share
    moved = 2 * rotated * q.dtype.bytes
    rows = min(numel(positions.shape), table.shape[0])
    moved += rows * table.shape[1] * table.dtype.bytes + positions.bytes
    return _work(model, ROPE_FLOPS * rotated, moved, q.dtype.word)


def transform(model: OpModel, sig: Signature) -> OpWork | None:
    """One pass from an input to an output of another size or type (gated activation, quantisation)."""
    out, x = named(model, sig, "out"), named(model, sig, "x")
    if out is None or x is None or not out.shape:
        return None
    size = numel(out.shape)
    flops = size * int(model.options["flops_per_element"])
    return _work(model, flops, x.bytes + size * out.dtype.bytes, x.dtype.word)
