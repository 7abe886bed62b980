"""The sections of the Report document on what could be otherwise: memory and its room, sensitivities, batch sizes.

Units are in the field names; None means unknown.
"""

from __future__ import annotations

from typing import Literal

from traceanalyzer.report.sections import Section


class Memory(Section):
    """How the device memory is used, and how many sequences fit."""

    total_bytes: int | None
    weight_bytes: float | None
    kv_bytes_per_token: float | None
    kv_reserved_bytes: float | None
    kv_used_bytes: float | None
    free_bytes: float | None
    max_sequences: int | None
    source: str
    confidence: float
    assumptions: list[str]


class Sensitivity(Section):
    """Share of a decode step saved by one change."""

    compute_2x: float | None
    bandwidth_2x: float | None
    launches_free: float | None
    weights_half: float | None
    kv_half: float | None


class BatchPoint(Section):
    """A decode step with so many sequences in it, as predicted."""

    sequences: int
    step_us: float
    tokens_per_s: float


class Batching(Section):
    """How far batching carries: the predicted throughput of larger batches, and what ends it.

    `batching_efficiency` is the measured throughput over that of as many single streams, each at the predicted step of
    one sequence; `effective_batch` the number of single streams that the batch is worth. `streams` sequences took
    turns in the recording, in steps that each serve a part of them; 1 where none did.
    """

    points: list[BatchPoint]
    cap: int | None
    cap_reason: Literal["ridge", "kv_memory", "unknown"]
    batching_efficiency: float | None
    effective_batch: float | None
    streams: int | None
    source: str
    confidence: float
    assumptions: list[str]
