"""Fewer bytes per weight or per key and value, where reading those is what the step does.

Not where idle time or elementwise kernels take more of the step than the reads, nor where matrix products are bound by
compute: weights in fewer bits are unpacked before they are multiplied.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.forecast.model import QUANTISED_EFFECT, QUANTISED_EFFECT_4_BITS
from traceanalyzer.findings import chains
from traceanalyzer.findings.answer import Answer, Refusal, error, passed, proposal
from traceanalyzer.findings.change import as_in
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, PhaseSubject

WEIGHTS_MATTER = 0.40
KV_MATTERS = 0.20
"""Shares of the step above which fewer bytes are worth it; KV as in the method's advice."""

BYTES_4_BITS = 0.52
"""Bytes per weight with 4 bits and a scale and zero per group of 128."""


def weights(subject: PhaseSubject) -> Answer:
    """Would smaller weights shorten the step?"""
    rows = subject.is_weight
    share = subject.share(rows)
    refusal = _not_the_reads(subject, rows, share, WEIGHTS_MATTER, "weights_small")
    if refusal is not None:
        return refusal
    elements = subject.per_step(subject.column("n") * subject.column("k"), rows)
    size = subject.per_step("weight_bytes", rows) / elements if elements > 0 else np.nan
    if np.isnan(size):
        return error("work_not_recorded")
    if size <= 0.75:
        return passed("already_quantised", bytes=size)
    if size > 2.5:
        return passed("fp32_first", bytes=size)
    target, dtype, effect = (1.0, _eight_bits(subject), QUANTISED_EFFECT) if size > 1.25 else (
        BYTES_4_BITS, "int4", QUANTISED_EFFECT_4_BITS
    )  # fmt: skip
    new = as_in(subject, subject.model.with_weights(target / size, effect))
    evidence = (
        Fact("weights_share", {"share": share, "bytes": subject.per_step("weight_bytes", rows)}),
        Fact("bytes_per_weight", {"bytes": size, "target": target, "dtype": dtype}),
    )
    return proposal(subject, new, rows, evidence, 0.8, ("unpacking_costs", "quality_suffices"))


def _eight_bits(subject: PhaseSubject) -> str:
    return "fp8" if "fp8" in subject.timeline.device.peaks_tflops else "int8"


def kv_cache(subject: PhaseSubject) -> Answer:
    """Would a smaller KV cache shorten the step?"""
    rows = subject.is_attention
    share = subject.share(rows)
    refusal = _not_the_reads(subject, rows, share, KV_MATTERS, "kv_small")
    if refusal is not None:
        return refusal
    keys = subject.column("batch") * subject.column("kv_len")
    sized = rows & (keys > 0) & (subject.column("kv_heads") > 0) & (subject.column("head_dim") > 0)
    if not sized.any():
        return error("work_not_recorded")
    elements = 2.0 * keys * subject.column("kv_heads") * subject.column("head_dim")
    size = subject.per_step("kv_bytes", sized) / subject.per_step(elements, sized)
    if size <= 1.25:
        return passed("kv_already_small", bytes=size)
    new = as_in(subject, subject.model.with_kv(1.0 / size, QUANTISED_EFFECT))
    evidence = (
        Fact("kv_share", {"share": share, "bytes": subject.per_step("kv_bytes", rows)}),
        Fact("bytes_per_kv", {"bytes": size, "target": 1.0}),
    )
    return proposal(subject, new, rows, evidence, 0.7, ("unpacking_costs", "quality_suffices"))


def _not_the_reads(subject: PhaseSubject, rows: Bools, share: float, matters: float, small: str) -> Refusal | None:
    """Why fewer bytes would not help: too small a part, something else takes more, or compute binds those kernels."""
    if share < matters:
        return passed(small, share=share)
    idle, elementwise = subject.idle_share, subject.share(chains.fusible(subject))
    if idle > share:
        return passed("idle_dominates", share=idle, own=share)
    if elementwise > share:
        return passed("elementwise_dominates", share=elementwise, own=share)
    memory, compute = subject.column("memory_ns"), subject.column("compute_ns")
    by_memory = subject.time(rows & (memory > compute)) / subject.time(rows)
    return passed("compute_binds", share=1.0 - by_memory) if by_memory < 0.5 else None
