"""What rules can need, each with the answer it gives where that is missing.

Nothing to judge (no attention, a CPU) is `not_applicable`; something to judge without the data for it is `error`. Work
is taken as recorded where it is known for most of the time it is asked about: a sum that misses more says nothing.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.phases import KNOWN_ENOUGH
from traceanalyzer.findings.answer import Refusal, error, not_applicable
from traceanalyzer.findings.subject import Bools, PhaseSubject


def gpu(subject: PhaseSubject) -> Refusal | None:
    """A device that is no CPU: grids, launches and tensor cores mean nothing there."""
    return not_applicable("on_cpu") if subject.timeline.device.kind == "cpu" else None


def launches(subject: PhaseSubject) -> Refusal | None:
    """The launch calls of most kernels."""
    known = (subject.rows["launch"] >= 0).to_numpy()
    return None if subject.time(subject.is_kernel & known) >= KNOWN_ENOUGH * subject.time(subject.is_kernel) else (
        error("launches_not_recorded")
    )  # fmt: skip


def bandwidth(subject: PhaseSubject) -> Refusal | None:
    """The device's memory bandwidth."""
    return None if subject.timeline.device.bandwidth_gbs else error("gpu_unknown")


def weights(subject: PhaseSubject) -> Refusal | None:
    """Matrix products with weights, of known size."""
    matrix = subject.is_matrix & ~subject.is_batched
    if not matrix.any():
        return not_applicable("no_matrix_products")
    return _work(subject, matrix, "weight_bytes")


def matrix_work(subject: PhaseSubject) -> Refusal | None:
    """Matrix products whose FLOPs and bytes are known."""
    if not subject.is_matrix.any():
        return not_applicable("no_matrix_products")
    return _work(subject, subject.is_matrix, "compute_ns") or _work(subject, subject.is_matrix, "memory_ns")


def attention_work(subject: PhaseSubject) -> Refusal | None:
    """Attention kernels whose KV bytes are known."""
    if not subject.is_attention.any():
        return not_applicable("no_attention")
    return _work(subject, subject.is_attention, "kv_bytes")


def grids(subject: PhaseSubject) -> Refusal | None:
    """The grids of the matrix and attention kernels, and the device's number of SMs."""
    heavy = subject.is_matrix | subject.is_attention
    if not subject.timeline.device.num_sms:
        return error("gpu_unknown")
    return None if subject.time(heavy & ~np.isnan(subject.blocks)) >= KNOWN_ENOUGH * subject.time(heavy) else (
        error("grids_not_recorded")
    )  # fmt: skip


def _work(subject: PhaseSubject, rows: Bools, column: str) -> Refusal | None:
    known = subject.known_share(column, rows)
    if known >= KNOWN_ENOUGH:
        return None
    unknown = rows & subject.rows[column].isna().to_numpy()
    if (subject.replayed & unknown).any():
        return error("work_in_graphs")
    if subject.time(unknown & subject.has_shapes) > 0.5 * subject.time(unknown):
        return error("work_not_modelled", share=1.0 - known)
    return error("work_not_recorded")
