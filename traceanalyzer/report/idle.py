"""The sections of the Report document on the host's part: why the device was idle, and how work was launched.

Units are in the field names; None means unknown.
"""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from traceanalyzer.report.sections import PhaseName, Section

Cause = Literal[
    "launch", "graph_launch", "sync", "sync_restart", "alloc", "host", "host_in_step", "wait_input", "wait_rank",
    "latency", "artefact", "unknown",
]  # fmt: skip


class IdleCause(Section):
    """Idle time of one cause in one phase of one device, and who made it.

    `call` is the runtime call, `op` the operator around it (of host work the one before it), `frame` the line of
    Python, `during` the annotation around it; null where there is none. `others` counts the further culprits that a row
    without names stands for. The rows of a bucket sum to the ledger's.
    """

    rank: int | None
    device: int
    phase: PhaseName
    cause: Cause
    bucket: str
    us: float
    us_per_step: float | None
    share_of_phase: float | None
    gaps: int
    longest_us: float
    call: str | None
    op: str | None
    frame: str | None
    during: str | None
    others: int


class HostRead(Section):
    """An operator with which the host read a value back, and so could not go on before the device had it."""

    op: str
    per_step: float
    us_per_step: float


class Launches(Section):
    """How one phase of the slowest device was launched, per complete step.

    `us_per_launch` is the host's time from one launch call to the next, `us_per_call` that in the call itself.
    `known_share` is the share of kernels whose launch call was recorded.
    """

    phase: PhaseName
    steps: int
    kernels_per_step: float
    calls_per_step: float | None
    graph_calls_per_step: float | None
    us_per_call: float | None
    us_per_launch: float | None
    queue_depth_p50: float | None
    queue_empty_share: float | None
    short_kernels_share: float
    short_kernels_time_share: float
    known_share: float
    reads: list[HostRead]


_KINDS = frozenset((
    "launch", "graph_launch", "sync", "alloc", "host", "latency", "comm", "memcpy", "kernels", "artefact", "unknown",
))  # fmt: skip
"""Kinds of time on the critical path; that of kernels has their category behind a point."""


class CriticalPart(Section):
    """A kind of time on the critical path, and how much shorter the step would be if it took none.

    `us` is null for what lies beside the path, `saves_us` where nothing could be taken away. Savings do not add up.
    """

    kind: str
    us: float | None
    saves_us: float | None

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind.partition(".")[0] not in _KINDS:
            raise ValueError("no kind of time on a critical path")
        return kind


class CriticalPath(Section):
    """The critical path of the median step of a phase, on the slowest device. The parts' `us` sum to `step_us`."""

    phase: PhaseName
    step: int
    step_us: float
    parts: list[CriticalPart]
