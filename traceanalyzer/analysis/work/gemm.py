"""Matrix products: 2 M N K per product, each operand once (method: F = 2BMNK, Q = B(MK + KN + MN) b).

M counts the rows of the activations, whatever their leading dimensions. Operands of 4 bits hold two numbers per
element: their inner dimension counts twice. What could be wrong: an op that multiplies a weight from the left
(`mm(W, x)`) reports its M and N swapped; FLOPs and bytes do not change.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.dtypes import scalar_type, wider
from traceanalyzer.analysis.work.opwork import Operand, OpWork, integers, named, value
from traceanalyzer.catalog.op_models import OpModel


def gemm(model: OpModel, sig: Signature) -> OpWork | None:
    """A (batched) matrix product, with an optional addend (bias) and scales; None where the shapes do not fit."""
    a, b = named(model, sig, "a"), named(model, sig, "b")
    if a is None or b is None:
        return None
    dims = _dimensions(a, b, str(model.options.get("b_layout", "kn")))
    if dims is None:
        return None
    batch, m, n, inner = dims
    k = inner * int(model.options.get("values", a.dtype.values))
    scales = tuple(_scales(model, sig, side) for side in "ab")
    return _product(model, sig, a, b, (batch, m, n, k), _out_bytes(model, sig, a), scales)


def gemv(model: OpModel, sig: Signature) -> OpWork | None:
    """Matrix times vector: a GEMM of one row, the matrix its weight. A vector for a matrix is a dot product."""
    matrix, vector = named(model, sig, "matrix"), named(model, sig, "vector")
    if matrix is None or vector is None or len(vector.shape) != 1 or len(matrix.shape) not in (1, 2):
        return None
    k = vector.shape[0]
    if matrix.shape[-1] != k:
        return None
    n = matrix.shape[0] if len(matrix.shape) == 2 else 1
    return _product(model, sig, vector, matrix, (1, 1, n, k), vector.dtype.bytes)


def _product(
    model: OpModel, sig: Signature, a: Operand, b: Operand, dims: tuple[int, int, int, int], out_bytes: int,
    scales: tuple[int, ...] = (0, 0),
) -> OpWork:  # fmt: skip
    """The work of a x b of dimensions (batch, m, n, k) with an optional addend, and bytes of scales of a and of b."""
    batch, m, n, k = dims
    outputs = batch * m * n
    addend = None if value(model, sig, "beta") == "0" else named(model, sig, "addend")
    moved = a.bytes + b.bytes + outputs * out_bytes + sum(scales) + (addend.bytes if addend else 0)
    dtype = model.options.get("dtype", wider(a.dtype, b.dtype).word)
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=float(2 * outputs * k + (outputs if addend else 0)),
        bytes=float(moved),
        dtype=None if dtype is None else str(dtype),
        m=m,
        n=n,
        k=k,
        batch=batch,
        weight_bytes=float(b.bytes + scales[1]) if len(b.shape) == 2 else None,
    )


def _dimensions(a: Operand, b: Operand, layout: str) -> tuple[int, int, int, int] | None:
    """(batch, m, n, inner) of a (m, inner) times b, which lies as (inner, n), (n, inner) or `either` way."""
    if len(b.shape) == 3 and len(a.shape) == 3:
        batches, m, inner = a.shape
        batch, (rows, columns) = b.shape[0], b.shape[1:]
    elif len(b.shape) == 2 and a.shape:
        batch = batches = 1
        m, inner, (rows, columns) = numel(a.shape[:-1]), a.shape[-1], b.shape
    else:
        return None
    if batch != batches:
        return None
    if layout != "nk" and rows == inner:
        return batch, m, columns, inner
    return (batch, m, rows, inner) if layout != "kn" and columns == inner else None


def _scales(model: OpModel, sig: Signature, side: str) -> int:
    """Bytes of an operand's scales: one tensor, or a list, whose type is not recorded but follows from its recipes.

    Recipes 2 and 3 (one scale per 16 or 32 values) have scales of one byte (e4m3, e8m0), the others fp32.
    """
    single, at = named(model, sig, f"scale_{side}"), model.at.get(f"scales_{side}")
    shapes, kinds = None if at is None else sig.tensors(at), integers(value(model, sig, f"recipes_{side}"))
    if shapes is None or kinds is None or len(shapes) != len(kinds):
        return single.bytes if single else 0
    return sum(numel(shape) * (1 if kind in (2, 3) else 4) for shape, kind in zip(shapes, kinds, strict=True))


def _out_bytes(model: OpModel, sig: Signature, a: Operand) -> int:
    fixed = model.options.get("out_bytes")
    if isinstance(fixed, int):
        return fixed
    out = named(model, sig, "out")
    if out is not None:
        return out.dtype.bytes
    asked = scalar_type(value(model, sig, "out_dtype"))
    if asked is not None:
        return asked.bytes
    if "out_dtype" in model.at and a.dtype.word in ("fp8", "fp4", "int8"):
        return 2  # the 16-bit result of every serving engine; the record only lacks it in old traces
    return a.dtype.bytes
