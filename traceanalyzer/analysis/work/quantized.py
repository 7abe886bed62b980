"""Products with packed weights of few bits, and the kernels that unpack them.

A packed weight is stored in words of another type, in an order of its own (tiles, interleaved), so its recorded shape
does not tell N and K. K is that of the activations; N comes from the size that the op was given, or from the scales,
which keep one column per output. Its bytes are the recorded ones: packed they are the true ones. Such a kernel unpacks
to the activations' type and multiplies in it. What could be wrong: positions that changed between library versions; a
weight of less than 1.5 or more than 9 bits per value is therefore refused as misread.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.dtypes import scalar_type
from traceanalyzer.analysis.work.opwork import OpWork, integers, named, number, value, work
from traceanalyzer.catalog.op_models import OpModel

FEWEST_BITS, MOST_BITS = 1.5, 9.0
_WEIGHTS = ("scale_b", "scale_global", "zeros", "code")
"""What belongs to the weight besides its packed values."""


def packed_gemm(model: OpModel, sig: Signature) -> OpWork | None:
    """Activations (..., K) times a packed weight of N x K values; None where N or K is not told or does not fit."""
    a, packed = named(model, sig, "a"), named(model, sig, "b")
    if a is None or packed is None or not a.shape:
        return None
    m, k = numel(a.shape[:-1]), a.shape[-1]
    n = _columns(model, sig, k)
    if n is None or n < 1 or not FEWEST_BITS <= 8 * packed.bytes / max(n * k, 1) <= MOST_BITS:
        return None
    out, asked = named(model, sig, "out"), scalar_type(value(model, sig, "out_dtype"))
    written = (out.dtype if out else asked or a.dtype).bytes
    if out is None and asked is None and a.dtype.bytes == 1:
        written = 2  # quantised activations are answered in 16 bits
    weight = packed.bytes + _bytes(model, sig, *_WEIGHTS)
    dtype = model.options.get("dtype", a.dtype.word)
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=float(2 * m * n * k + (m * n if named(model, sig, "bias") else 0)),
        bytes=float(a.bytes + weight + m * n * written + _bytes(model, sig, "scale_a", "bias")),
        dtype=None if dtype is None else str(dtype),
        m=m,
        n=n,
        k=k,
        batch=1,
        weight_bytes=float(weight),
    )


def _bytes(model: OpModel, sig: Signature, *names: str) -> int:
    return sum(o.bytes for o in (named(model, sig, name) for name in names) if o)


def _columns(model: OpModel, sig: Signature, k: int) -> int | None:
    """N: as the op was told, or the scales' columns (`n_of`, `n_axis`)."""
    if "n" in model.at:
        told = number(model, sig, "n")
        if told is not None:
            return told
    if "shape" in model.at:
        shape = integers(value(model, sig, "shape"))
        return shape[0] if shape is not None and len(shape) == 2 and shape[1] == k else None
    columns = named(model, sig, str(model.options.get("n_of", "scale_b")))
    axis = int(model.options.get("n_axis", -1))
    if columns is None or not -len(columns.shape) <= axis < len(columns.shape):
        return None
    return columns.shape[axis]


def dequantise(model: OpModel, sig: Signature) -> OpWork | None:
    """Packed values to a wider type: the packed ones, scales and zeros read, every value written."""
    x, scale = named(model, sig, "x"), named(model, sig, "scale_b")
    if x is None:
        return None
    shape = integers(value(model, sig, "shape")) if "shape" in model.at else None
    if "shape" in model.at and (shape is None or any(n < 0 for n in shape)):
        return None
    count = numel(x.shape) * int(model.options.get("values", 1)) if shape is None else numel(shape)
    out = named(model, sig, "out")
    written = out.dtype if out else scalar_type(value(model, sig, "out_dtype"))
    if written is None and "like_scale" in model.options and scale is not None:
        written = scale.dtype
    if written is None:
        return None
    read = x.bytes + _bytes(model, sig, *_WEIGHTS, "scale_a", "bias")
    flops = count * int(model.options["flops_per_element"])
    return work(model, flops, read + count * written.bytes, written.word)
