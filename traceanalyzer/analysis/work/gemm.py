"""Matrix products: 2 M N K per product, each operand once (method: F = 2BMNK, Q = B(MK + KN + MN) b).

M counts the rows of the activations, whatever their leading dimensions. What could be wrong: an op that multiplies a
weight from the left (`mm(W, x)`) reports its M and N swapped; FLOPs and bytes do not change.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.dtypes import scalar_type, wider
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, value
from traceanalyzer.catalog.op_models import OpModel


def gemm(model: OpModel, sig: Signature) -> OpWork | None:
    """A (batched) matrix product, with an optional addend (bias) and scales; None where the shapes do not fit."""
    a, b = named(model, sig, "a"), named(model, sig, "b")
    if a is None or b is None:
        return None
    dims = _dimensions(a, b, model.options.get("b_layout") == "nk")
    if dims is None:
        return None
    scales = (named(model, sig, "scale_a"), named(model, sig, "scale_b"))
    return _product(model, sig, a, b, dims, _out_bytes(model, sig, a), scales)


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
    more: tuple[Operand | None, ...] = (),
) -> OpWork:  # fmt: skip
    """The work of a x b of dimensions (batch, m, n, k) with an optional addend; `more` is read besides."""
    batch, m, n, k = dims
    outputs = batch * m * n
    addend = None if value(model, sig, "beta") == "0" else named(model, sig, "addend")
    moved = a.bytes + b.bytes + outputs * out_bytes + sum(o.bytes for o in (addend, *more) if o)
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=float(2 * outputs * k + (outputs if addend else 0)),
        bytes=float(moved),
        dtype=wider(a.dtype, b.dtype).word,
        m=m,
        n=n,
        k=k,
        batch=batch,
        weight_bytes=float(b.bytes) if len(b.shape) == 2 else None,
    )


def _dimensions(a: Operand, b: Operand, transposed: bool) -> tuple[int, int, int, int] | None:
    if len(b.shape) == 3 and len(a.shape) == 3:
        (batch, m, k), (batches, rows, n) = a.shape, b.shape
        return (batch, m, n, k) if batch == batches and rows == k else None
    if len(b.shape) != 2 or not a.shape:
        return None
    m, k = numel(a.shape[:-1]), a.shape[-1]
    rows, columns = b.shape
    n, inner = (rows, columns) if transposed else (columns, rows)
    return (1, m, n, k) if inner == k else None


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
    if "out_dtype" in model.at and a.dtype.word == "fp8":
        return 2  # the 16-bit result of every serving engine; the record only lacks it in old traces
    return a.dtype.bytes
