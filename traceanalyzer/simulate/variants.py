"""What a profiler was told to record, and windows that open and close in the middle of a pass.

What could be wrong: a real profiler that stops loses a few more records than those that had not ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceanalyzer.simulate.clock import TimedPass


@dataclass(frozen=True, slots=True)
class Variant:
    """What is written. Without `ops` there are runtime calls and kernels only; `cut` cuts the first and last pass."""

    shapes: bool = True
    labels: bool = True
    ops: bool = True
    stacks: bool = False
    flows: bool = True
    memory: bool = False
    cut: bool = False


def cut_begin(timed: TimedPass) -> TimedPass:
    """The pass as a window sees it that opened when half of its work had run."""
    return _kept(timed, _middle(timed), None)


def cut_end(timed: TimedPass) -> TimedPass:
    """The pass as a window sees it that closed when half of its work had run."""
    return _kept(timed, None, _middle(timed))


def _middle(timed: TimedPass) -> int:
    """When the middle one of the pass's kernels and copies starts."""
    if not timed.ran:
        return timed.begin
    return sorted(one.start for one in timed.ran)[len(timed.ran) // 2]


def _kept(timed: TimedPass, first: int | None, last: int | None) -> TimedPass:
    """What starts at `first` or later and has ended by `last`."""

    def inside(start: int, end: int) -> bool:
        return (first is None or start >= first) and (last is None or end <= last)

    return replace(
        timed,
        ops=[op for op in timed.ops if inside(op.start, op.start + op.duration)],
        calls=[call for call in timed.calls if inside(call.start, call.end)],
        ran=[one for one in timed.ran if inside(one.start, one.end)],
        labelled=timed.labelled and inside(timed.begin, timed.end),
        complete=False,
    )
