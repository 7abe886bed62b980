"""What the close-up of a step draws: one lane per stream or host thread's ops and calls, and one for the gaps.

Positions are percent of the step, so that the page can be stretched. Items carry no text of their own: the script reads
their names from the document in the page, and what stands beside the picture says the longest ones in words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import CloseUp, CloseUpRow, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.kernel_names import label
from traceanalyzer.report.views.pieces import percent, ticks

LANE_HEIGHT = 24
_LONGEST = 8
_THINNEST = 0.03  # percent of the width: what is drawn of a very short item
_PRODUCT, _ATTENTION, _OTHER, _MOVING, _HOST, _UNKNOWN = "p", "a", "o", "m", "h", "u"
_OF_CATEGORY = {
    "gemm": _PRODUCT, "gemv": _PRODUCT, "conv": _PRODUCT, "moe": _PRODUCT, "attention": _ATTENTION, "comm": _MOVING,
    "memcpy": _MOVING, "memset": _MOVING, "copy": _MOVING, "kv_cache": _MOVING,
}  # fmt: skip
_OF_CAUSE = {
    "launch": "l", "graph_launch": "l", "sync": "s", "sync_restart": "s", "alloc": "w", "host": "w",
    "host_in_step": "w", "latency": "k", "wait_rank": "r", "wait_input": "r",
}  # fmt: skip
GROUPS = (_PRODUCT, _ATTENTION, _OTHER, _MOVING, _HOST, "l", "s", "w", "k", "r", _UNKNOWN)
"""The colours, as classes of one letter, for there are thousands of them; what each means: `closeup.group.*`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One rectangle; `x` and `width` are percent of the step, `group` its colour."""

    x: str
    width: str
    group: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the picture; `row` is its index among the document's rows, `gaps` for those of the device."""

    label: str
    row: str
    y: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class LongItem:
    """One of the longest items, in words."""

    where: str
    name: str
    start: str
    duration: str


@dataclass(frozen=True, slots=True)
class CloseUpView:
    """One step close up. `causes` is JSON, for the script: what the causes of its gaps are called."""

    index: int
    phase: str
    title: str
    description: str
    lanes: tuple[Lane, ...]
    height: int
    groups: tuple[tuple[str, str], ...]
    ticks: tuple[str, ...]
    longest: tuple[LongItem, ...]
    left_out: str
    causes: str


def closeup_views(report: Report) -> list[CloseUpView]:
    """The pictures of the document's close-ups, in its order."""
    on_cpu = (device := rows.slowest_device(report)) is not None and device.kind == "cpu"
    return [
        _view(index, found, on_cpu)
        for index, found in enumerate(report.closeups)
        if found.rows and found.duration_us > 0
    ]


def whole_trace(report: Report) -> str:
    """How to open the whole trace, and where in it the first close-up lies; empty where there is none."""
    if not report.closeups or not report.traces:
        return ""
    device = rows.slowest_device(report)
    files = [trace.name for trace in report.traces if device is None or trace.rank == device.rank]
    name = files[0] if len(files) == 1 else text("closeup.trace_window")
    told = text("closeup.trace", open=text("closeup.trace_open"), name=name)
    if len(files) != 1:  # the span is that of all windows
        return told
    starts = [(found.phase, found.from_us + found.device_from_us) for found in report.closeups]
    later = [
        text("closeup.begins", phase=strings.phase_label(phase).lower(), start=fmt.duration(us))
        for phase, us in starts
        if us > 0
    ]
    return " ".join([told, *later])


def _view(index: int, found: CloseUp, on_cpu: bool) -> CloseUpView:
    lanes = [_lane(found, number, row, on_cpu) for number, row in enumerate(found.rows)]
    if found.gaps.start_us:
        marks = _items(found, found.gaps.start_us, found.gaps.duration_us, _colours(found))
        lanes.append(Lane(text("closeup.gaps"), "gaps", len(lanes) * LANE_HEIGHT, marks))
    phase = strings.phase_label(found.phase)
    drawn = {item.group for lane in lanes for item in lane.items}
    return CloseUpView(
        index=index,
        phase=found.phase,
        title=text("closeup.step", phase=phase, index=found.step, duration=fmt.duration(_device_us(found))),
        description=text("closeup.description", phase=phase.lower(), lanes=fmt.count(len(lanes))),
        lanes=tuple(lanes),
        height=len(lanes) * LANE_HEIGHT,
        groups=tuple((group, text(f"closeup.group.{group}")) for group in GROUPS if group in drawn),
        ticks=ticks(found.duration_us),
        longest=_longest(found, on_cpu),
        left_out=text("closeup.left_out", count=fmt.count(found.rows_left_out)) if found.rows_left_out else "",
        causes=json.dumps({cause: _cause(cause) for cause in sorted(set(found.gaps.cause))}),
    )


def _cause(cause: str) -> str:
    return text(f"idle.cause.{cause}")


def _colours(found: CloseUp) -> list[str]:
    return [_OF_CAUSE.get(cause, _UNKNOWN) for cause in found.gaps.cause]


def _device_us(found: CloseUp) -> float:
    return found.duration_us - found.device_from_us


def _lane(found: CloseUp, number: int, row: CloseUpRow, on_cpu: bool) -> Lane:
    groups = [_HOST if row.kind != "stream" else _OF_CATEGORY.get(name or "", _OTHER) for name in row.category]
    items = _items(found, row.start_us, row.duration_us, groups)
    return Lane(row_label(row, on_cpu), str(number), number * LANE_HEIGHT, items)


def row_label(row: CloseUpRow, on_cpu: bool) -> str:
    """What a row shows."""
    return text("closeup.row.cpu") if on_cpu else text(f"closeup.row.{row.kind}", number=row.number)


def _items(
    found: CloseUp, starts: Sequence[float], durations: Sequence[float], groups: Sequence[str]
) -> tuple[Item, ...]:
    whole = found.duration_us
    return tuple(
        Item(percent(100 * max(start, 0.0) / whole), percent(max(100 * duration / whole, _THINNEST)), group)
        for start, duration, group in zip(starts, durations, groups, strict=True)
    )


def _longest(found: CloseUp, on_cpu: bool) -> tuple[LongItem, ...]:
    """The longest kernels and gaps, the longest first."""
    items = [
        (duration, start, row_label(row, on_cpu), _name(found, row, place))
        for row in found.rows
        if row.kind == "stream"
        for place, (start, duration) in enumerate(zip(row.start_us, row.duration_us, strict=True))
    ]
    items += [
        (duration, start, text("closeup.gaps"), _cause(cause))
        for start, duration, cause in zip(found.gaps.start_us, found.gaps.duration_us, found.gaps.cause, strict=True)
    ]
    items.sort(key=lambda item: (-item[0], item[1]))
    return tuple(
        LongItem(where, name, fmt.duration(start), fmt.duration(duration))
        for duration, start, where, name in items[:_LONGEST]
    )


def _name(found: CloseUp, row: CloseUpRow, place: int) -> str:
    name = row.name[place]
    if name is None:
        return text("closeup.joined", count=fmt.count(row.count[place]))
    return label(found.names[name])
