"""The sections of the Report document on what Holistic Trace Analysis (HTA) says of the same trace.

Units are in the field names; None means unknown. The definitions are HTA's (docs/method.md).
"""

from __future__ import annotations

from traceanalyzer.report.sections import PhaseName, Section


class HTATime(Section):
    """A whole device (`phase` null), or one phase of it in so many contiguous pieces, whose figures are added.

    `kernel_us` runs from the first activity's start to the last one's end; idle, compute and non-compute time divide
    it. `types_us` is by HTA's kernel type, or types that ran at once; `overlap_share` the share of communication during
    which computation ran.
    """

    rank: int | None
    device: int
    phase: PhaseName | None
    pieces: int
    kernel_us: float
    idle_us: float
    compute_us: float
    non_compute_us: float
    types_us: dict[str, float]
    overlap_share: float | None


class HTAStream(Section):
    """One stream of a device: its gaps by HTA's causes, negative where kernels overlap, and its queue in an eager run.

    `queue_coverage` is the share of the device's activity that the queue's figures know of.
    """

    rank: int | None
    device: int
    stream: int
    host_wait_us: float
    kernel_wait_us: float
    other_us: float
    queue_coverage: float | None
    queue_mean: float | None
    queue_p50: float | None
    queue_max: float | None


class HTALaunches(Section):
    """The launch calls of an eager run; a delay is from the call's return to the kernel's start, at least zero.

    `coverage` is the share of the device's activity whose launch HTA knows.
    """

    rank: int | None
    device: int
    count: int
    coverage: float
    cpu_us_mean: float
    gpu_us_mean: float
    delay_us_mean: float
    delay_us_p50: float
    delay_us_p99: float


class HTA(Section):
    """What HTA says; `source` is the distribution and its version, `pieces_omitted` the phase pieces left out."""

    source: str
    times: list[HTATime]
    streams: list[HTAStream]
    launches: list[HTALaunches]
    pieces_omitted: int
