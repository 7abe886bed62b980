"""The result of a work model: what one call of an op has to compute and to move, whoever executes it."""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.analysis.shapes import Dims, Signature, integer, numel
from traceanalyzer.analysis.work.dtypes import Dtype, recorded
from traceanalyzer.catalog.op_models import OpModel


@dataclass(frozen=True, slots=True)
class OpWork:
    """The algorithmic work of one op call. None is unknown; it never stands for zero.

    Conventions: one multiply-add is 2 FLOPs; each input is read once and each output written once, at the recorded
    dtype's size; a broadcast (stride 0) operand counts once; a causal mask halves attention (the masked pairs are not
    work).

    Args:
        model: the op model's kind ("gemm", "attention", ...).
        category, role: of the kernel that does the work.
        flops: floating point (or integer) operations.
        bytes: bytes read and written.
        dtype: compute dtype of the operands (fp32, bf16, ...).
        m, n, k, batch: GEMM dimensions, m the rows of the activations (the tokens); batch also attention's sequences.
        q_len, kv_len: attention: queries and keys per sequence where they are the same for all; where the sequences
            are not told apart (batch unknown) q_len is all query tokens.
        heads, kv_heads, head_dim: attention.
        weight_bytes: the weights' bytes, their scales included: the 2-D operand of a GEMM or GEMV, a convolution's
            filters, active experts. Of batched products only the steps tell, see `work.batched`.
        kv_bytes: K and V bytes read (attention).
        bytes_min: what is moved at least: of a sort, whose passes re-read their input so that `bytes` is unknown; of
            experts, where every token takes the same ones.
        weight_bytes_min, weight_bytes_max: of experts, as few and as many of them active as the routing allows.
        estimated: flops and bytes assume sequences of equal length, or experts drawn evenly.
        untyped_elements: elements read plus written, of a size that is not recorded; the kernel's name may tell it.
    """

    model: str
    category: str
    role: str
    flops: float | None = None
    bytes: float | None = None
    dtype: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    weight_bytes: float | None = None
    kv_bytes: float | None = None
    bytes_min: float | None = None
    weight_bytes_min: float | None = None
    weight_bytes_max: float | None = None
    estimated: bool = False
    untyped_elements: float | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument: its shape, dtype, and the number of elements that differ (stride 0 repeats none)."""

    shape: Dims
    dtype: Dtype
    unique: int

    @property
    def bytes(self) -> int:
        """Bytes to read it once."""
        return self.unique * self.dtype.bytes


def operand(sig: Signature, index: int | None) -> Operand | None:
    """Argument `index` as a tensor (a zero-dimensional one included), or None where it is none or its type unknown."""
    if index is None or index >= len(sig.dims):
        return None
    dtype = recorded(sig.type(index))
    shape = sig.dims[index]
    if dtype is None or not isinstance(shape, tuple):
        return None
    dims = tuple(n for n in shape if isinstance(n, int))
    if len(dims) != len(shape):
        return None
    return Operand(dims, dtype, _unique(dims, sig.stride(index)))


def _unique(shape: Dims, strides: Dims | None) -> int:
    if strides is None or len(strides) != len(shape):
        return numel(shape)
    return numel(tuple(n if stride != 0 else min(n, 1) for n, stride in zip(shape, strides, strict=True)))


def named(model: OpModel, sig: Signature, name: str) -> Operand | None:
    """The operand that the catalogue calls `name`, or None where the op has none or none was given."""
    return operand(sig, model.at.get(name))


def value(model: OpModel, sig: Signature, name: str) -> str:
    """The recorded value of the argument that the catalogue calls `name`; "" where not recorded."""
    index = model.at.get(name)
    return "" if index is None else sig.value(index)


def number(model: OpModel, sig: Signature, name: str) -> int | None:
    """The recorded value of the argument that the catalogue calls `name` as an integer, or None."""
    return integer(value(model, sig, name))


def integers(text: str) -> tuple[int, ...] | None:
    """A recorded list of integers ("[1, 2]"; a single one without brackets counts as a list), or None for another text.

    Where nothing was recorded ("") the answer is None as well; an empty list is ().
    """
    parts = [part.strip() for part in text.removeprefix("[").removesuffix("]").split(",")]
    if not text or parts == [""]:
        return () if text == "[]" else None
    found = [integer(part) for part in parts]
    known = tuple(n for n in found if n is not None)
    return known if len(known) == len(found) else None


def work(
    model: OpModel, flops: float | None, moved: float | None, dtype: str | None, *, bytes_min: float | None = None
) -> OpWork:
    """The work of an op that has no dimensions of a matrix product or of attention."""
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=None if flops is None else float(flops),
        bytes=None if moved is None else float(moved),
        dtype=dtype,
        bytes_min=None if bytes_min is None else float(bytes_min),
    )
