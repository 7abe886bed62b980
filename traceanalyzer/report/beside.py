"""The sections of the Report document on what stands beside the events: step log, counters, recording, redaction.

Units are in the field names; None means unknown.
"""

from __future__ import annotations

from typing import Literal

from traceanalyzer.report.sections import Section


class StepLog(Section):
    """Every step of the last minutes, in a window or not, as the collector logged it.

    Shares are of the steps' own time. A decode period runs from one decode step's start to the next one's.
    """

    seconds: float | None
    steps: int | None
    prefill_steps: int | None
    decode_steps: int | None
    mixed_steps: int | None
    prefill_share: float | None
    decode_share: float | None
    mixed_share: float | None
    other_share: float | None
    idle_s: float | None
    decode_period_us_p50: float | None
    decode_period_us_p99: float | None
    prefill_us_p50: float | None
    prefill_us_p99: float | None
    tokens_in: int | None
    tokens_out: int | None
    sequences_mean: float | None
    context_mean: float | None
    source: str


class Counters(Section):
    """The GPU's own counters over the window, as NVML reads them; `throttle_share` is of time with the clock held down.

    `tensor_active` and `dram_active` are shares of time in which that unit was active (GPM, from Hopper on).
    """

    util_gpu: float | None
    power_w: float | None
    power_limit_w: float | None
    sm_mhz: float | None
    sm_mhz_max: float | None
    throttle_share: float | None
    throttle_reasons: list[str]
    other_processes: int | None
    tensor_active: float | None
    dram_active: float | None
    memory_used_bytes: float | None
    samples: int | None
    seconds: float | None
    source: str


class RecordedWindow(Section):
    """One window: where it lies in the analysed span of the slowest device, and why and how it was recorded."""

    start_us: float
    duration_us: float
    number: int | None
    reason: str | None
    closed_by: str | None


class Recording(Section):
    """What the collector recorded, and what it lost.

    `windows_total` is of the recording, None where its manifest was not read. `weight_s` is the time that the windows
    stand for together. `ranks_missing` are ranks of which some window has no file.
    """

    mode: str | None
    recorder: str | None
    trigger: str | None
    windows_read: int
    windows_total: int | None
    ranks_missing: list[int]
    dropped: dict[str, int]
    weight_s: float | None
    stable_batch: bool | None
    cold_start: bool | None
    windows: list[RecordedWindow]


class Redaction(Section):
    """What was taken out of the input files before they were shared, as they say themselves.

    `level` is the least of these `files`, `counts` how often each kind of thing was taken out of them together.
    """

    level: Literal["none", "default", "strict"]
    files: int
    counts: dict[str, int]
