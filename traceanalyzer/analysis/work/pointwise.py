"""Work on the vector units that is bound by memory: elementwise ops, copies, gathers and scatters.

One FLOP per output element and simple op; a copy, cast or concatenation computes nothing (0 FLOPs). A gather reads the
rows it takes, not the table. Concatenation records no element type (TensorList): its bytes are left to the caller,
which may read the size from the kernel's name.

A Python number among the operands is recorded as a tensor without dimensions, of type double, long or bool; the kernel
gets it as an argument, so it is not read from memory. What could be wrong: a tensor on the device without dimensions
and of such a type looks the same; its eight bytes are then not counted.
"""

from __future__ import annotations

from dataclasses import replace

from traceanalyzer.analysis.shapes import Dims, Signature, integer, numel
from traceanalyzer.analysis.work.dtypes import BOOL, BOOLEAN, FP32, FP64, INT, INT64, Dtype, promote, scalar_type
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, number, operand, value, work
from traceanalyzer.catalog.op_models import OpModel

_NUMBERS = (FP64, INT64, BOOLEAN)
"""What a Python number is recorded as."""


def _work(model: OpModel, flops: float, moved: float | None, dtype: Dtype | None) -> OpWork:
    return work(model, flops, moved, dtype.word if dtype else None)


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
    read = sum(o.bytes for o in tensors if o.shape or not shape or o.dtype not in _NUMBERS)
    return _work(model, flops, read + size * result.bytes, result)


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


def sequence(model: OpModel, sig: Signature) -> OpWork | None:
    """Numbers start, start + step, ... below end: each written once. 0 FLOPs."""
    start = number(model, sig, "start") if "start" in model.at else 0
    end = number(model, sig, "end")
    step = number(model, sig, "step") if "step" in model.at else 1
    if start is None or end is None or not step:
        return None
    target, asked = named(model, sig, "dst"), value(model, sig, "dtype")
    written = target.dtype if target else scalar_type(asked) if asked else INT64
    length = max(-((start - end) // step), 0)
    return None if written is None else _work(model, 0, length * written.bytes, written)


def gather(model: OpModel, sig: Signature) -> OpWork | None:
    """Rows (or single elements) taken from a table: what is taken is read and written once, and the index read."""
    table, index = named(model, sig, "table"), named(model, sig, "index")
    elements = named(model, sig, "elements")
    if table is None or not table.shape:
        return None
    if "index_list" in model.at:  # a list with gaps, of which nothing is recorded
        return _work(model, 0, None, table.dtype)
    if elements is not None:
        taken, position_bytes = numel(elements.shape), elements.bytes
    elif index is not None:
        dim = axis(value(model, sig, "dim") or "0", len(table.shape))
        if dim is None:
            return None
        taken = numel(index.shape) * numel(table.shape[:dim]) * numel(table.shape[dim + 1 :])
        position_bytes = index.bytes
    else:
        return None
    return _work(model, 0, 2 * taken * table.dtype.bytes + position_bytes, table.dtype)


def scatter(model: OpModel, sig: Signature) -> OpWork | None:
    """Rows written to their places in a larger tensor (a KV cache): sources read, as many elements written. 0 FLOPs.

    Where the positions are a list, of which nothing is recorded, the sources may also be repeated over them: what they
    hold is then the least that is moved.
    """
    moved = 0
    for end in ("a", "b"):
        if f"src_{end}" not in model.at:
            continue
        source, target = named(model, sig, f"src_{end}"), named(model, sig, f"dst_{end}")
        if source is None or target is None:
            return None
        moved += source.bytes + numel(source.shape) * target.dtype.bytes
    if "index_list" in model.at:
        return work(model, 0, None, None, bytes_min=moved)
    index = named(model, sig, "index")
    return _work(model, 0, moved + (index.bytes if index else 0), None)


def scatter_elements(model: OpModel, sig: Signature) -> OpWork | None:
    """Single elements, or rows, written to (or added to) the places that an index names.

    As many as the index has elements, or as the source has where the index names rows (`rows`). Adding reads the place
    before and computes one FLOP per element.
    """
    target, index, source = named(model, sig, "dst"), named(model, sig, "index"), named(model, sig, "src")
    counted = source if "rows" in model.options else index
    if target is None or index is None or counted is None:
        return None
    count = numel(counted.shape)
    adds = "adds" in model.options
    read = count * source.dtype.bytes if source and source.shape else 0
    moved = index.bytes + read + (2 if adds else 1) * count * target.dtype.bytes
    return _work(model, count if adds else 0, moved, target.dtype)


def axis(text: str, rank: int) -> int | None:
    """A recorded dimension of a tensor, counted from the front, or None where it names none."""
    number = integer(text)
    if number is None:
        return None
    number += rank if number < 0 else 0
    return number if 0 <= number < max(rank, 1) else None
