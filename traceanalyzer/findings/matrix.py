"""Matrix products that run below what the device can: in fp32, far from the bandwidth, far from the peak."""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.findings.answer import Answer, error, not_applicable, passed, proposal
from traceanalyzer.findings.attention import BLOCKS_PER_SM, REACHED_BANDWIDTH, slow_rows
from traceanalyzer.findings.change import MINIMAL_KERNEL_NS, as_in
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject

MATTERS = 0.05
LOW_SHARE_OF_PEAK = 0.5
BEYOND_THE_LIMIT = 1.05
"""A card may clock a little above its sheet; beyond this a share of its peaks is no share any more."""


def fp32(subject: PhaseSubject) -> Answer:
    """Do matrix products run in fp32 where 16 bits would do?"""
    device = subject.timeline.device
    if not device.has_tensor_cores:
        return not_applicable("no_tensor_cores")
    rows = subject.is_matrix & (subject.rows["dtype"] == "fp32").to_numpy()
    share = subject.share(rows)
    if share < MATTERS:
        return passed("no_fp32_products", share=share)
    target = next((dtype for dtype in ("bf16", "fp16") if device.peak_tflops(dtype, True)), None)
    on_units = rows & (subject.rows["tensor_core"] == 1).to_numpy()
    now = device.peak_tflops("fp32", bool(subject.time(on_units) > 0.5 * subject.time(rows)))
    if target is None or now is None:
        return not_applicable("no_tensor_cores")
    ratio = (device.peak_tflops(target, True) or now) / now
    model = subject.model
    groups = model.of_category(*MATRIX_CATEGORIES) & (model.rows["dtype"] == "fp32").to_numpy()
    new = as_in(subject, model.with_work(groups, flops=1.0 / ratio, size=0.5))
    evidence = (
        Fact("fp32_share", {"share": share, "count": float(rows.sum()) / subject.count}),
        Fact("peak_ratio", {"ratio": ratio, "dtype": target}),
    )
    return proposal(subject, new, rows, evidence, 0.75, ("precision_suffices", "half_the_bytes"))


def low_bandwidth(subject: PhaseSubject) -> Answer:
    """Do weight products of a decode step miss the bandwidth although the device is full?"""
    blocks = subject.blocks
    few = blocks < BLOCKS_PER_SM * (subject.timeline.device.num_sms or 0)
    rows = slow_rows(subject) & ~few
    new = np.maximum(subject.column("memory_ns") / REACHED_BANDWIDTH, MINIMAL_KERNEL_NS)
    rows &= new < subject.duration
    share = subject.share(rows)
    if share < MATTERS:
        return _reached("bandwidth_reached", subject, subject.column("memory_ns"), subject.is_weight)
    used = subject.per_step("memory_ns", rows) / subject.time(rows)
    evidence = (Fact("bandwidth_of_kernels", {"share": used, "time_share": share}),)
    return proposal(subject, new, rows, evidence, 0.6, ("kernel_reaches_bandwidth",))


def low_mfu(subject: PhaseSubject) -> Answer:
    """Do the matrix products of a prefill miss the peak although compute bounds them?"""
    compute, memory = subject.column("compute_ns"), subject.column("memory_ns")
    bound = subject.is_matrix & (compute >= memory)
    if subject.time(bound) < 0.5 * subject.time(subject.is_matrix):
        return passed("prompt_below_ridge", tokens=subject.summary.tokens_mean or 0.0)
    device = subject.timeline.device
    reach = device.achievable_tflops
    reached = {dtype: reach[dtype] / peak for dtype, peak in device.peaks_tflops.items() if dtype in reach and peak}
    dtype = subject.rows["dtype"]
    new = compute / dtype.map(reached).fillna(1.0).to_numpy(np.float64)
    slow = bound & (compute < LOW_SHARE_OF_PEAK * subject.duration) & (new < subject.duration)
    slow &= dtype.isin(list(reached)).to_numpy() & (subject.rows["tensor_core"] == 1).to_numpy()
    share = subject.share(slow)
    if share < MATTERS:
        return _reached("peak_reached", subject, compute, bound)
    used = subject.per_step(compute, slow) / subject.time(slow)
    evidence = (Fact("peak_of_kernels", {"share": used, "time_share": share}),)
    return proposal(subject, new, slow, evidence, 0.6, ("product_reaches_peak",))


def _reached(code: str, subject: PhaseSubject, ideal: Floats, rows: Bools) -> Answer:
    """Passed, with the share of the limit that the kernels use; no share is above what the device can do."""
    ideal_time, time = subject.per_step(ideal, rows), subject.time(rows)
    if ideal_time > BEYOND_THE_LIMIT * time:
        return error("faster_than_possible")
    return passed(code, share=ideal_time / time if time else 0.0)
