"""The fused parts of a transformer layer: norms, softmax, rotary embedding, gated activation, quantisation.

All are bound by memory at the sizes of language models; their FLOPs follow a convention (so many per element, stated
in the catalogue), so compare bytes, not FLOPs, with other tools.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.dtypes import FP32, scalar_type
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, number, value, work
from traceanalyzer.catalog.op_models import OpModel

SOFTMAX_FLOPS = 5  # maximum, subtraction, exponential, sum, division
ROPE_FLOPS = 3  # per element: four products and two sums turn a pair
NORM_FLOPS = 4  # of a root mean square norm, per element: square, sum, scale, weight


def norm(model: OpModel, sig: Signature) -> OpWork | None:
    """A norm over the last dimensions; with a residual, both the sum and the normed value are written."""
    x = named(model, sig, "x")
    if x is None or not x.shape:
        return None
    size = numel(x.shape)
    out = named(model, sig, "out")
    moved = x.bytes + size * (out or x).dtype.bytes
    residual = named(model, sig, "residual")
    if "residual" in model.at and residual is None and model.options.get("residual") != "optional":
        return None
    moved += 2 * residual.bytes if residual else 0
    moved += sum(o.bytes for o in (named(model, sig, name) for name in ("weight", "bias", "scale")) if o)
    return work(model, size * int(model.options["flops_per_element"]), moved, x.dtype.word)


def softmax(model: OpModel, sig: Signature) -> OpWork | None:
    """Softmax: input once, output once (wider where the op casts), 5 FLOPs per element."""
    x = named(model, sig, "x")
    if x is None:
        return None
    written = scalar_type(value(model, sig, "dtype")) or x.dtype
    if value(model, sig, "to_float") == "True":
        written = FP32
    size = numel(x.shape)
    return work(model, SOFTMAX_FLOPS * size, x.bytes + size * written.bytes, x.dtype.word)


def rope(model: OpModel, sig: Signature) -> OpWork | None:
    """Rotary embedding of q (and k): the rotated elements read and written, one table row per token.

    Where the same kernel also stores k and v in the cache, v is read and both are written besides.
    """
    q, k = named(model, sig, "q"), named(model, sig, "k")
    table, positions = named(model, sig, "table"), named(model, sig, "positions")
    if q is None or table is None or positions is None or len(table.shape) != 2:
        return None
    head = number(model, sig, "head_size") if "head_size" in model.at else q.shape[-1] if len(q.shape) == 3 else None
    rotated = sum(numel(o.shape) for o in (q, k) if o) * _turned(table, head)
    moved = 2 * rotated * q.dtype.bytes + _rows(table, positions)
    stored = named(model, sig, "v")
    if stored and k:
        moved += stored.bytes + (numel(k.shape) + numel(stored.shape)) * stored.dtype.bytes
    return work(model, ROPE_FLOPS * rotated, moved, q.dtype.word)


def norm_rope(model: OpModel, sig: Signature) -> OpWork | None:
    """A norm of every head of q and k, then their rotation, in place in the packed q, k and v of each token."""
    qkv, table, positions = named(model, sig, "x"), named(model, sig, "table"), named(model, sig, "positions")
    q_heads, k_heads, head = (number(model, sig, name) for name in ("q_heads", "k_heads", "head_size"))
    if qkv is None or table is None or positions is None or len(qkv.shape) != 2 or len(table.shape) != 2:
        return None
    if q_heads is None or k_heads is None or head is None or min(q_heads, k_heads) < 0 or head < 1:
        return None
    if (q_heads + k_heads) * head > qkv.shape[1]:
        return None
    normed = qkv.shape[0] * (q_heads + k_heads) * head
    weights = sum(o.bytes for o in (named(model, sig, "weight"), named(model, sig, "bias")) if o)
    flops = normed * (NORM_FLOPS + ROPE_FLOPS * _turned(table, head))
    return work(model, flops, 2 * normed * qkv.dtype.bytes + weights + _rows(table, positions), qkv.dtype.word)


def _turned(table: Operand, head: int | None) -> float:
    """The share of a head that is rotated: the table is as wide as that part."""
    return min(table.shape[1] / head, 1.0) if head and head > 0 else 1.0


def _rows(table: Operand, positions: Operand) -> int:
    """Bytes of the positions and of the table's rows that they name."""
    return min(numel(positions.shape), table.shape[0]) * table.shape[1] * table.dtype.bytes + positions.bytes


def stream(model: OpModel, sig: Signature) -> OpWork | None:
    """One pass over all operands that the catalogue names, each read or written once; `x` counts the FLOPs.

    A result that is returned, not given, is `returned` bytes per element of x.
    """
    x = named(model, sig, "x")
    if x is None or not x.shape or ("out" in model.at and named(model, sig, "out") is None):
        return None
    size = numel(x.shape)
    moved = sum(o.bytes for o in (named(model, sig, name) for name in model.at) if o)
    moved += size * int(model.options.get("returned", 0))
    return work(model, size * int(model.options["flops_per_element"]), moved, x.dtype.word)


def transform(model: OpModel, sig: Signature) -> OpWork | None:
    """One pass from an input to an output of another size or type (gated activation, quantisation)."""
    out, x = named(model, sig, "out"), named(model, sig, "x")
    if out is None or x is None or not out.shape:
        return None
    size = numel(out.shape)
    flops = size * int(model.options["flops_per_element"])
    return work(model, flops, x.bytes + size * out.dtype.bytes, x.dtype.word)
