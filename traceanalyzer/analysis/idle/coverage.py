"""How far the causes of idle time can be known: gaps without a known launch, and clocks that disagree.

What could be wrong: a driver that starts a kernel before its launch call has begun to be recorded, by a fraction of a
microsecond, is no skew; `SKEW_NS` is left for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceanalyzer.analysis.idle.divide import Divided
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MISSING, Note, Severity

UNKNOWN_MATTERS = 0.01
"""Share of the recorded time in gaps whose launch is not known from which that is said."""
MISLEADS = 0.05
"""The share from which the causes are not to be relied on."""
SKEW_NS = 1_000
"""A kernel that starts so long before its launch call began was timed by another clock."""


def notes(found: Sequence[tuple[Timeline, Divided]]) -> list[Note]:
    """What a reader must know before believing the causes."""
    told: list[Note] = []
    gaps = ns = recorded = early = 0
    most = 0
    for line, divided in found:
        lost = ~divided.known & (divided.parts["artefact"] == 0)
        gaps += int(lost.sum())
        ns += int(divided.length[lost].sum())
        recorded += line.recorded_ns
        called = line.table["launch_start_ns"].to_numpy(np.int64)
        ahead = np.where(called == MISSING, 0, called - line.table["start_ns"].to_numpy(np.int64))
        early += int((ahead > SKEW_NS).sum())
        most = max(most, int(ahead.max(initial=0)))
    if recorded > 0 and ns > UNKNOWN_MATTERS * recorded:
        severity: Severity = "warning" if ns > MISLEADS * recorded else "info"
        told.append(Note("gaps_without_launch", severity, gaps, f"{100 * ns / recorded:.0f} %"))
    if early:
        told.append(Note("kernels_before_launch", "warning", early, f"{most / 1e3:.3g}"))
    return told
