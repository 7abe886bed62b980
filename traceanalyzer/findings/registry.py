"""All rules, in the order in which a reader would ask them: the host first, then what the kernels do, then the rest.

A rule lists what it needs; it is asked only where all of that is there. Add one here and its sentences in
`report/strings/findings.py`.
"""

from __future__ import annotations

from traceanalyzer.findings import (
    attention,
    batch,
    cat,
    chains,
    communication,
    host,
    matrix,
    needs,
    precision,
    ranks,
    sampling,
)
from traceanalyzer.findings.answer import Rule

_HOST, _MEMORY, _COMPUTE, _COMMUNICATION = ("host",), ("memory",), ("compute",), ("communication",)
_ON_GPU = (needs.gpu,)
_WORK = (needs.gpu, needs.bandwidth, needs.matrix_work)

RULES: tuple[Rule, ...] = (
    Rule("launch_bound_decode", "decode", (needs.gpu, needs.launches), host.launch_bound, _HOST),
    Rule("d2h_sync_per_token", "decode", (needs.gpu, needs.launches), host.sync_per_token, _HOST),
    Rule("requests_in_turns", "decode", _WORK, batch.in_turns),
    Rule("decode_batch_below_ridge", "decode", _WORK, batch.larger_batch, _MEMORY),
    Rule("weights_dominate", "decode", (needs.gpu, needs.bandwidth, needs.weights, needs.matrix_work),
         precision.weights, _MEMORY),
    Rule("kv_dominates", "decode", (needs.gpu, needs.bandwidth, needs.attention_work), precision.kv_cache, _MEMORY),
    Rule("kv_cat_copies", "decode", _ON_GPU, cat.kv_cat, _MEMORY),
    Rule("unfused_elementwise", "decode", (needs.gpu, needs.bandwidth), chains.unfused),
    Rule("unfused_elementwise_prefill", "prefill", (needs.gpu, needs.bandwidth), chains.unfused),
    Rule("fp32_gemm", "decode", _WORK, matrix.fp32),
    Rule("fp32_gemm_prefill", "prefill", _WORK, matrix.fp32),
    Rule("math_attention", "decode", (needs.gpu, needs.bandwidth), attention.math_attention),
    Rule("math_attention_prefill", "prefill", (needs.gpu, needs.bandwidth), attention.math_attention),
    Rule("small_gpu_fill", "decode", (*_WORK, needs.grids), attention.small_fill, _MEMORY),
    Rule("low_bandwidth_gemm", "decode", (*_WORK, needs.weights), matrix.low_bandwidth, _MEMORY),
    Rule("prefill_low_mfu", "prefill", _WORK, matrix.low_mfu, _COMPUTE),
    Rule("lm_head_and_sampling", "decode", _ON_GPU, sampling.sampler),
    Rule("lm_head_all_positions", "prefill", (*_WORK, needs.weights), sampling.all_positions),
    Rule("communication_exposed", "decode", _ON_GPU, communication.exposed, _COMMUNICATION),
    Rule("communication_exposed_prefill", "prefill", _ON_GPU, communication.exposed, _COMMUNICATION),
    Rule("straggling_rank", "decode", _ON_GPU, ranks.straggling, _COMMUNICATION),
    Rule("straggling_rank_prefill", "prefill", _ON_GPU, ranks.straggling, _COMMUNICATION),
)  # fmt: skip

WINDOW = "window_cut_or_short"
"""The one rule about the recording rather than a phase."""
