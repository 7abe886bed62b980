"""Work models: what each kernel has to compute and to move, from the recorded shapes of the op that owns it."""

from traceanalyzer.analysis.work.annotated import fill_attention
from traceanalyzer.analysis.work.batched import fill_weights
from traceanalyzer.analysis.work.expert_layers import KnownModel, fill_experts
from traceanalyzer.analysis.work.measure import measure
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.registry import op_work

__all__ = ["KnownModel", "OpWork", "fill_attention", "fill_experts", "fill_weights", "measure", "op_work"]
