"""From a recorded op call to its work: the catalogue says which formula, this module calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work.attention import attention, paged
from traceanalyzer.analysis.work.convolution import convolution
from traceanalyzer.analysis.work.experts import experts, grouped, packed
from traceanalyzer.analysis.work.gemm import gemm, gemv
from traceanalyzer.analysis.work.layers import norm, norm_rope, rope, softmax, stream, transform
from traceanalyzer.analysis.work.lora import adapters
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.pointwise import (
    concat,
    copy,
    elementwise,
    fill,
    gather,
    scatter,
    scatter_elements,
    sequence,
)
from traceanalyzer.analysis.work.quantized import dequantise, packed_gemm
from traceanalyzer.analysis.work.reductions import reduction, scan
from traceanalyzer.catalog import op_models

Formula = Callable[[op_models.OpModel, Signature], OpWork | None]

FORMULAS: Mapping[str, Formula] = {
    "gemm": gemm,
    "gemv": gemv,
    "packed_gemm": packed_gemm,
    "dequantise": dequantise,
    "experts": experts,
    "grouped": grouped,
    "packed_experts": packed,
    "adapters": adapters,
    "attention": attention,
    "paged_attention": paged,
    "convolution": convolution,
    "elementwise": elementwise,
    "copy": copy,
    "fill": fill,
    "concat": concat,
    "gather": gather,
    "scatter": scatter,
    "scatter_elements": scatter_elements,
    "sequence": sequence,
    "norm": norm,
    "softmax": softmax,
    "rope": rope,
    "norm_rope": norm_rope,
    "stream": stream,
    "transform": transform,
    "reduce": reduction,
    "scan": scan,
}


def op_work(name: str, signature: Signature) -> OpWork | None:
    """The work of one call of op `name`, or None where no model knows it or its shapes were not recorded.

    Pure: the same name and signature always give the same answer. An answer may still hold None in `flops` or `bytes`
    (an attention op that records no context length, say): what is known is filled, what is not stays unknown.
    """
    model = op_models.find(name, len(signature.dims))
    if model is None or not signature.dims:
        return None
    return FORMULAS[model.kind](model, signature)
