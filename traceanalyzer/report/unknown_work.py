"""The part of the Report document that lists kernels whose FLOPs or bytes are not known."""

from __future__ import annotations

from typing import Literal

from traceanalyzer.report.sections import PhaseName, Section


class UnknownWork(Section):
    """One kernel name of one operator in one phase of the slowest device.

    `op` is null where no operator is known. `lacks` says what is not known. `share` is of the time of the phase's
    kernels that compute. `rule` is the kernel rule that knows the name, null where none does.
    """

    phase: PhaseName
    name: str
    category: str
    role: str | None
    op: str | None
    lacks: Literal["flops", "bytes", "both"]
    count: int
    total_us: float
    share: float
    rule: str | None
