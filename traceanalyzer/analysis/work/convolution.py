"""Convolutions: 2 N O prod(out) C/g prod(k) FLOPs; input, filters and bias read once, output written once.

The size of the output follows from stride, padding and dilation as PyTorch's documentation of Conv and ConvTranspose
gives it. A transposed convolution multiplies every input element with every filter element of its group instead, so
its FLOPs are 2 N C prod(in) O/g prod(k). Without the recorded values of those arguments nothing is known. What could be
wrong: kernels that transform first (FFT, Winograd) execute fewer FLOPs than counted here.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Dims, Signature, numel
from traceanalyzer.analysis.work.dtypes import wider
from traceanalyzer.analysis.work.opwork import OpWork, integers, named, number, value
from traceanalyzer.catalog.op_models import OpModel


def convolution(model: OpModel, sig: Signature) -> OpWork | None:
    """A convolution over 1 to 3 dimensions, x (N, C, ...) or (C, ...) with filters (O, C/g, ...), or transposed.

    `m` is the number of output positions. None where the arguments were not recorded or do not fit.
    """
    x, filters = named(model, sig, "x"), named(model, sig, "weight")
    if x is None or filters is None or len(filters.shape) < 3:
        return None
    spatial = len(filters.shape) - 2
    if len(x.shape) not in (spatial + 1, spatial + 2):
        return None
    transposed = "transposed" in model.options or value(model, sig, "transposed") == "True"
    groups = _groups(model, sig, x.shape[-spatial - 1])
    out = _output(model, sig, x.shape[-spatial:], filters.shape[2:], transposed)
    if out is None or groups is None or groups < 1:
        return None
    taken, given = filters.shape[0], filters.shape[1] * groups
    if not transposed:
        taken, given = given, taken
    if x.shape[-spatial - 1] != taken:
        return None
    positions = numel(out) * (x.shape[0] if len(x.shape) == spatial + 2 else 1)
    outputs = positions * given
    counted = numel(x.shape) if transposed else outputs  # each of them meets one whole filter
    extra = [o for o in (named(model, sig, "bias"), named(model, sig, "addend")) if o]
    moved = x.bytes + filters.bytes + outputs * x.dtype.bytes + sum(o.bytes for o in extra)
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        flops=float(2 * counted * numel(filters.shape[1:]) + len(extra) * outputs),
        bytes=float(moved),
        dtype=wider(x.dtype, filters.dtype).word,
        m=positions,
        weight_bytes=float(filters.bytes),
    )


def _groups(model: OpModel, sig: Signature, channels: int) -> int | None:
    if "groups" in model.at:
        return number(model, sig, "groups")
    return channels if "depthwise" in model.options else 1


def _output(model: OpModel, sig: Signature, size: Dims, kernel: Dims, transposed: bool) -> Dims | None:
    """The sizes of the output's dimensions."""
    rank = len(kernel)
    stride, padding = _each(model, sig, "stride", rank, 1), _each(model, sig, "padding", rank, 0)
    dilation = _each(model, sig, "dilation", rank, 1)
    added = _each(model, sig, "output_padding", rank, 0) if transposed else (0,) * rank
    if stride is None or padding is None or dilation is None or added is None or min(stride) < 1:
        return None
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    each = zip(size, stride, padding, reach, added, strict=True)
    if transposed:
        out = tuple((n - 1) * s - 2 * p + r + a + 1 for n, s, p, r, a in each)
    else:
        out = tuple((n + 2 * p - r - 1) // s + 1 for n, s, p, r, _ in each)
    return out if min(out) >= 0 else None


def _each(model: OpModel, sig: Signature, name: str, rank: int, default: int) -> Dims | None:
    """One number per dimension; a list of one holds for all. The default holds for an op without that argument."""
    if name not in model.at:
        return (default,) * rank
    found = integers(value(model, sig, name))
    if found is None or len(found) not in (1, rank):
        return None
    return found * rank if len(found) == 1 else found
