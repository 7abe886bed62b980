"""Work on the vector units that is bound by memory: elementwise ops, copies, gathers and scatters, reductions.

One FLOP per output element and simple op; a copy, cast or concatenation computes nothing (0 FLOPs). A gather reads the
rows it takes, not the table. Concatenation records no element type (TensorList): its bytes are left to the caller,
which may read the size from the kernel's name.
"""

from __future__ import annotations

from dataclasses import replace

from traceanalyzer.analysis.shapes import Dims, Signature, integer, numel
from traceanalyzer.analysis.work.dtypes import BOOL, BOOLEAN, FP32, INT, INT64, Dtype, promote, scalar_type
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, operand, value
from traceanalyzer.catalog.op_models import OpModel


def _work(model: OpModel, flops: float, moved: float | None, dtype: Dtype | None) -> OpWork:
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=float(flops),
        bytes=None if moved is None else float(moved),
        dtype=dtype.word if dtype else None,
    )


def elementwise(model: OpModel, sig: Signature) -> OpWork | None:
    """Elementwise with broadcasting: inputs once at their own size, the output once, 1 FLOP per output element."""
    count = int(model.options.get("operands", 2))
    operands = [operand(sig, i) for i in range(min(count, len(sig.dims)))]
    tensors = [o for o in operands if o is not None]
    if not tensors or (operands[0] is None and model.in_place) or _is_unreadable(sig, operands):
        return None
    shape = tensors[0].shape if model.in_place else _broadcast([o.shape for o in tensors])
    result = tensors[0].dtype if model.in_place else _result(model, sig, operands)
    if shape is None or result is None:
        return None
    size = numel(shape)
    flops = size * int(model.options.get("flops_per_element", 1))
    return _work(model, flops, sum(o.bytes for o in tensors) + size * result.bytes, result)


def _is_unreadable(sig: Signature, operands: list[Operand | None]) -> bool:
    """A tensor of a type that the table lacks among the operands: the bytes would be too few."""
    return any(o is None and sig.tensor(i) is not None for i, o in enumerate(operands))


def _broadcast(shapes: list[Dims]) -> Dims | None:
    rank = max(len(s) for s in shapes)
    out: list[int] = []
    for sizes in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        larger = {n for n in sizes if n != 1}
        if len(larger) > 1:
            return None
        out.append(larger.pop() if larger else 1)
    return tuple(out)


def _result(model: OpModel, sig: Signature, operands: list[Operand | None]) -> Dtype | None:
    rule = model.options.get("result")
    if rule == "bool":
        return BOOLEAN
    if rule == "first":
        return operands[0].dtype if operands[0] else None
    skip = 1 if rule == "branches" else 0
    tensors = [o for o in operands[skip:] if o is not None]
    numbers = [sig.value(i) for i, o in enumerate(operands) if o is None and i >= skip]
    result = promote([o.dtype for o in tensors if o.shape], [o.dtype for o in tensors if not o.shape], numbers)
    return FP32 if rule == "float" and result is not None and result.category in (BOOL, INT) else result


def copy(model: OpModel, sig: Signature) -> OpWork | None:
    """A copy or a cast: reads the source (a broadcast one once), writes the destination. 0 FLOPs."""
    source = named(model, sig, "src")
    if source is None:
        return None
    if "dst" in model.at:
        target = named(model, sig, "dst")
        if target is None:
            return None
        return _work(model, 0, numel(target.shape) * target.dtype.bytes + source.bytes, target.dtype)
    asked = value(model, sig, "dtype")
    written = scalar_type(asked) if asked else source.dtype
    moved = None if written is None else source.bytes + numel(source.shape) * written.bytes
    return _work(model, 0, moved, written)


def fill(model: OpModel, sig: Signature) -> OpWork | None:
    """Writes every element of its destination once. 0 FLOPs."""
    target = named(model, sig, "dst")
    return None if target is None else _work(model, 0, numel(target.shape) * target.dtype.bytes, target.dtype)


def concat(model: OpModel, sig: Signature) -> OpWork | None:
    """Concatenation of a list of tensors: each element read and written once, of a size that is not recorded."""
    shapes = sig.tensors(model.at["list"])
    if shapes is None:
        return None
    elements = sum(numel(s) for s in shapes if s)
    return replace(_work(model, 0, None, None), untyped_elements=2.0 * elements)


def gather(model: OpModel, sig: Signature) -> OpWork | None:
    """Rows (or single elements) taken from a table: what is taken is read and written once, and the index read."""
    table, index = named(model, sig, "table"), named(model, sig, "index")
    elements = named(model, sig, "elements")
    if table is None or not table.shape:
        return None
    if elements is not None:
        taken, position_bytes = numel(elements.shape), elements.bytes
    elif index is not None:
        dim = _axis(value(model, sig, "dim") or "0", len(table.shape))
        if dim is None:
            return None
        taken = numel(index.shape) * numel(table.shape[:dim]) * numel(table.shape[dim + 1 :])
        position_bytes = index.bytes
    else:
        return None
    return _work(model, 0, 2 * taken * table.dtype.bytes + position_bytes, table.dtype)


def scatter(model: OpModel, sig: Signature) -> OpWork | None:
    """Rows written to their places in a larger tensor (a KV cache): sources read, as many elements written. 0 FLOPs."""
    moved = 0
    for end in ("a", "b"):
        if f"src_{end}" not in model.at:
            continue
        source, target = named(model, sig, f"src_{end}"), named(model, sig, f"dst_{end}")
        if source is None or target is None:
            return None
        moved += source.bytes + numel(source.shape) * target.dtype.bytes
    index = named(model, sig, "index")
    return _work(model, 0, moved + (index.bytes if index else 0), None)


def reduction(model: OpModel, sig: Signature) -> OpWork | None:
    """A reduction over all or some dimensions: input once, the whole output once, 1 FLOP per input element."""
    x = named(model, sig, "x")
    if x is None or sig.tensor(model.at["dim"]) is not None:  # max(x, y) of two tensors is another op
        return None
    size = numel(x.shape)
    outputs = _kept(model, sig, x.shape)
    written = _reduced_bytes(model, sig, x.dtype)
    return _work(model, size, None if outputs is None else x.bytes + outputs * written, x.dtype)


def _kept(model: OpModel, sig: Signature, shape: Dims) -> int | None:
    """Output elements; None where the reduced dimensions were not recorded."""
    at = model.at["dim"]
    if at >= len(sig.dims) or sig.type(at) == "":
        recorded = len(sig.concrete) > 0 or len(sig.dims) <= at
        return 1 if recorded else None
    text = sig.value(at)
    if not text or sig.type(at) not in ("Scalar", "ScalarList"):
        return None
    dims = [_axis(part.strip(), len(shape)) for part in text.strip("[]").split(",") if part.strip()]
    if any(d is None for d in dims):
        return None
    return 1 if not dims else numel(tuple(n for i, n in enumerate(shape) if i not in dims))


def _reduced_bytes(model: OpModel, sig: Signature, x: Dtype) -> int:
    rule = model.options.get("result")
    if rule == "index":
        return INT64.bytes
    if rule == "bool":
        return BOOLEAN.bytes
    asked = scalar_type(value(model, sig, "dtype"))
    if rule == "value_and_index":
        return x.bytes + (INT64.bytes if len(sig.dims) > model.at["dim"] else 0)
    if asked is not None:
        return asked.bytes
    widened = model.op in ("aten::sum", "aten::prod") and x.category in (BOOL, INT)
    return INT64.bytes if widened else x.bytes


def _axis(text: str, rank: int) -> int | None:
    axis = integer(text)
    if axis is None:
        return None
    axis += rank if axis < 0 else 0
    return axis if 0 <= axis < max(rank, 1) else None
