"""What the step strip draws: one lane per phase along time, at most a thousand marks, and the slowest steps in numbers.

Of several windows the time between them is left out. Up to that many steps each step is one mark. Beyond it time is
cut into equal bins and a mark says how much of its bin the steps of its lane cover, so gaps stay visible. What could be
wrong: in a binned strip single steps are not told apart, and a gap shorter than a bin only lightens it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Report, Step
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.pieces import percent, ticks

MAX_MARKS = 1000
_TITLED_MARKS = 300
_TABLE_ROWS = 20
_THINNEST = 0.05  # percent of the width: what is drawn of a very short step


@dataclass(frozen=True, slots=True)
class Mark:
    """One rectangle; `x` and `width` are percent, `shade` tells neighbours apart or says how full a bin is."""

    x: str
    width: str
    shade: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The marks of one phase."""

    phase: str
    label: str
    description: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step in the table."""

    index: int
    phase: str
    start: str
    start_us: float
    duration: str
    duration_us: float
    tokens: str
    sequences: str
    context: str
    confidence: str
    certainty: float
    evidence: str
    cut: bool


@dataclass(frozen=True, slots=True)
class StripView:
    """The steps of the slowest device in time."""

    lanes: tuple[Lane, ...]
    ticks: tuple[str, ...]
    omitted: str
    windows: str
    slowest: tuple[StepRow, ...]
    total: int


def strip_view(report: Report) -> StripView | None:
    """The strip of the slowest device, or None when no step was recognised."""
    device = rows.slowest_device(report)
    steps = rows.steps_of(report, device)
    if not steps:
        return None
    recorded = _Clock(report)
    slowest = sorted(steps, key=lambda step: (-step.duration_us, step.index))[:_TABLE_ROWS]
    steps = [step.model_copy(update={"start_us": recorded.at(step.start_us)}) for step in steps]
    start = 0.0
    length = max(step.start_us + step.duration_us for step in steps)
    if device and not report.steps_omitted:
        length = max(length, recorded.at(device.span_us))
    if length <= 0:
        return None
    phases = [phase for phase in rows.PHASES if any(step.phase == phase for step in steps)]
    binned = len(steps) > MAX_MARKS
    lanes = []
    for phase in phases:
        own = [step for step in steps if step.phase == phase]
        if binned:
            marks = _bins(own, start, length, MAX_MARKS // len(phases))
        else:
            marks = _marks(own, start, length, titled=len(steps) <= _TITLED_MARKS)
        description = text("steps.strip", count=fmt.count(len(own)), phase=strings.phase_label(phase).lower(),
                           start=ticks(length)[0], end=ticks(length)[-1])  # fmt: skip
        lanes.append(Lane(phase, strings.phase_label(phase), description, tuple(marks)))
    omitted = ""
    if report.steps_omitted:
        listed, total = len(report.steps), len(report.steps) + report.steps_omitted
        omitted = text("steps.omitted", shown=fmt.count(listed), total=fmt.count(total))
    windows = text("steps.windows") if rows.is_joined(report) else ""
    return StripView(
        tuple(lanes), ticks(length), omitted, windows, tuple(_row(step, start) for step in slowest), len(steps)
    )


class _Clock:
    """Time without what lies between the windows of a report; all of it where there is only one."""

    def __init__(self, report: Report) -> None:
        windows = report.recording.windows if report.recording and rows.is_joined(report) else []
        self._starts = [max(window.start_us, 0.0) for window in windows]
        ends = [window.start_us + window.duration_us for window in windows]
        self._before = [0.0]
        for start, end in zip(self._starts[1:], ends[:-1], strict=True):
            self._before.append(self._before[-1] + max(start - end, 0.0))

    def at(self, us: float) -> float:
        """A time of the span on this clock, in microseconds."""
        window = bisect.bisect_right(self._starts, us) - 1
        return us - self._before[max(window, 0)]


def _marks(steps: Sequence[Step], start: float, length: float, titled: bool) -> list[Mark]:
    marks = []
    for position, step in enumerate(steps):
        shade = "cut" if not step.complete else ("odd" if position % 2 else "even")
        title = ""
        if titled:
            phase = strings.phase_label(step.phase).lower()
            title = text("steps.mark", index=step.index, phase=phase, duration=fmt.duration(step.duration_us))
        width = max(100 * step.duration_us / length, _THINNEST)
        marks.append(Mark(percent(100 * (step.start_us - start) / length), percent(width), shade, title))
    return marks


def _bins(steps: Sequence[Step], start: float, length: float, bins: int) -> list[Mark]:
    """Equal bins of time, each as full as the steps of the lane cover it (steps of one lane hardly overlap)."""
    covered = [0.0] * bins
    for step in steps:
        first = (step.start_us - start) / length * bins
        last = min(first + step.duration_us / length * bins, float(bins))
        for index in range(int(first), min(int(last) + 1, bins)):
            covered[index] += max(0.0, min(last, index + 1) - max(first, index))
    width = percent(100 / bins)
    return [
        Mark(percent(100 * index / bins), width, f"full-{min(4, 1 + int(share * 4))}", "")
        for index, share in enumerate(covered)
        if share > 0
    ]


def _row(step: Step, start: float) -> StepRow:
    return StepRow(
        index=step.index,
        phase=strings.phase_label(step.phase),
        start=fmt.duration(step.start_us - start),
        start_us=step.start_us - start,
        duration=fmt.duration(step.duration_us),
        duration_us=step.duration_us,
        tokens=fmt.count(step.tokens),
        sequences=fmt.count(step.sequences),
        context=fmt.count(step.context_sum),
        confidence=fmt.percent(step.confidence),
        certainty=step.confidence,
        evidence="; ".join(step.evidence),
        cut=not step.complete,
    )
