"""One device's timeline: everything known about each activity, in one table that the later questions read.

`Timeline.table` is the activity of one device in start order, with the columns of `activity.Activity`, of
`work.measure` (category, role and source as categories: they are compared often), and

    step i32         row in `steps` (MISSING: belongs to no step)
    phase category   the step's phase; `other` outside complete steps (while there is a complete one)
    compute_ns f64   FLOPs over the peak of the unit that ran them: the least time the math can take (NaN: unknown)
    memory_ns f64    bytes over peak bandwidth: the least time the traffic can take (NaN: unknown)
    launch_start_ns, launch_end_ns    when the launch call began and returned (MISSING: no launch recorded)

A long gap that ends with a kernel which had been queued for nearly all of it is no idleness: the device ran something
that was not recorded (a window cut by host time, records lost). Such time is `unrecorded`; durations and periods of
steps do not count it. So is the time between two windows of one recording, from the last activity of the one to the
first of the other: it is nobody's, no period reaches over it, and the phases share what is left.

What could be wrong: the sheet's peak at the sheet's clock bounds both ideal times, so a card that boosts higher can
beat them; a figure beyond the limit is flagged by whoever prints it, never clipped here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.devices import DeviceInfo
from traceanalyzer.analysis.intervals import Ints, Union, covered, gaps, union, union_by_group
from traceanalyzer.analysis.model import UNKNOWN, Description
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

UNRECORDED_AFTER_NS = 10_000_000
UNRECORDED_SHARE = 0.9
"""A queued kernel normally starts within microseconds. One that waits this long, and for this share of the gap before
it, waited for something that was not recorded; shorter waits have ordinary causes (another stream, a busy driver)."""

_WORDS = ("category", "role", "source")


@dataclass(frozen=True)
class Timeline:
    """One device of one trace. `busy` is the union of all activity, `unrecorded` the gaps that are no idleness.

    `between` is the part of `unrecorded` that lies between two windows of the recording. `model` is what is known of
    the model that ran.

    `steps` are that device's steps in start order, with `duration_ns` (first activity to last, without unrecorded
    time), `busy_ns` (union of their activity) and `period_ns` (start to the start of the next step that is no part
    of another one, without unrecorded time; NaN for the last and for parts such as a draft pass).
    """

    trace: Trace
    device: DeviceInfo
    table: pd.DataFrame
    steps: pd.DataFrame
    busy: Union
    kernel_busy: Union
    unrecorded: Union
    between: Union
    model: Description = UNKNOWN

    @property
    def start_ns(self) -> int:
        """Where the analysed span begins: the first activity's start."""
        return int(self.busy.starts[0]) if len(self.busy.starts) else 0

    @property
    def end_ns(self) -> int:
        """Where the analysed span ends: the last activity's end."""
        return int(self.busy.ends[-1]) if len(self.busy.ends) else 0

    @property
    def span_ns(self) -> int:
        """Length of the analysed span."""
        return self.end_ns - self.start_ns

    @property
    def recorded_ns(self) -> int:
        """The recorded part of the span: what shares of time are taken over."""
        return self.span_ns - self.unrecorded.length

    @property
    def shared_ns(self) -> int:
        """The span without the time between windows: what the phases of a device divide among them."""
        return self.span_ns - self.between.length

    def unrecorded_between(self, starts: Ints, ends: Ints) -> Ints:
        """Unrecorded time inside each interval, in nanoseconds."""
        return covered(self.unrecorded, starts, ends)

    @property
    def complete_steps(self) -> pd.DataFrame:
        """The steps that were recorded whole: what averages are taken over."""
        return self.steps[self.steps["complete"].astype(bool)]


def counted_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps whose phase their kernels take: the complete ones, or all of them where none is complete."""
    complete = steps["complete"].astype(bool)
    return steps[complete] if complete.any() else steps


def _phases(step: np.ndarray, steps: pd.DataFrame) -> pd.Series:
    counted = counted_steps(steps)
    names = pd.Series([*counted["phase"], "other"], dtype="category")
    return names.iloc[counted.index.get_indexer(pd.Index(step))].reset_index(drop=True)


def ideal_times(table: pd.DataFrame, device: DeviceInfo) -> tuple[np.ndarray, np.ndarray]:
    """Least compute and memory time of every row, in nanoseconds: F / peak and Q / bandwidth (method: roofline)."""
    peaks = np.full(len(table), np.nan)
    on_tensor_cores = table["tensor_core"].to_numpy() == 1
    for dtype in table["dtype"].dropna().unique():
        for unit in (True, False):
            rows = (table["dtype"] == dtype).to_numpy() & (on_tensor_cores == unit)
            peaks[rows] = device.peak_tflops(str(dtype), unit) or np.nan
    flops = table["flops"].to_numpy(np.float64)
    compute = np.where(flops == 0.0, 0.0, flops / peaks / 1e3)
    bandwidth = device.bandwidth_gbs or np.nan
    return compute, table["bytes"].to_numpy(np.float64) / bandwidth


def tensor_core_times(table: pd.DataFrame, device: DeviceInfo) -> np.ndarray:
    """Least time of the FLOPs of every row on the device's tensor cores, in nanoseconds; NaN where it has none for it.

    A product with one row runs on other units; with more rows, or in another kernel, it would run on these.
    """
    peaks = {dtype: device.peak_tflops(str(dtype), True) or np.nan for dtype in table["dtype"].dropna().unique()}
    peak = table["dtype"].map(peaks).to_numpy(np.float64)
    return np.asarray(table["flops"].to_numpy(np.float64) / peak / 1e3)


def build(
    trace: Trace,
    device: DeviceInfo,
    activity: pd.DataFrame,
    work: pd.DataFrame,
    steps: pd.DataFrame,
    step: np.ndarray,
    model: Description = UNKNOWN,
) -> Timeline:
    """Join one device's activity with its work and steps.

    Args:
        trace: what was read.
        device: the device the rows ran on.
        activity, work, step: rows of that device only, aligned to each other.
        steps: the steps of that device, indexed by step number, in start order.
        model: what is known of the model that ran.
    """
    table = _beside(activity, work)
    compute, memory = ideal_times(table, device)
    launch_start, launch_end = _launch_calls(trace, table["launch"].to_numpy())
    table = table.assign(
        **{name: _categories(table[name]) for name in _WORDS if name in table},
        step=step.astype(np.int32),
        phase=_phases(step, steps),
        compute_ns=compute,
        memory_ns=memory,
        launch_start_ns=launch_start,
        launch_end_ns=launch_end,
    )
    start = table["start_ns"].to_numpy(np.int64)
    end = start + table["duration_ns"].to_numpy(np.int64)
    kernel = table["kind"].to_numpy() == KERNEL
    busy = union(start, end)
    between = _between(busy, trace)
    unrecorded = _unrecorded(busy, start, launch_end, between)
    timed = _timed(steps, unrecorded, between).assign(busy_ns=_busy(steps, step, start, end))
    return Timeline(trace, device, table, timed, busy, union(start[kernel], end[kernel]), unrecorded, between, model)


def _beside(activity: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """The columns of both in one table, which copies none of them: with as many rows as kernels, that shows."""
    numbered = pd.RangeIndex(len(activity))
    frames = [f if f.index.equals(numbered) else f.reset_index(drop=True) for f in (activity, work)]
    columns = {name: frame[name] for frame in reversed(frames) for name in frame.columns}
    return pd.DataFrame(columns, copy=False)[[*dict.fromkeys((*activity.columns, *work.columns))]]


def _categories(column: pd.Series) -> pd.Series:
    """The words of a column as categories in the order of the alphabet."""
    code, words = pd.factorize(column.to_numpy(object), sort=True)
    return pd.Series(pd.Categorical.from_codes(code, pd.Index(words)), column.index)


def _busy(steps: pd.DataFrame, step: np.ndarray, start: Ints, end: Ints) -> Ints:
    """Busy time of each step. `step` holds index labels of `steps`."""
    place = steps.index.get_indexer(pd.Index(step))
    inside = place >= 0
    return union_by_group(place[inside].astype(np.int64), start[inside], end[inside], len(steps))


def _launch_calls(trace: Trace, launch: np.ndarray) -> tuple[Ints, Ints]:
    """When each row's launch call began and returned, MISSING where none is recorded."""
    known = launch >= 0
    begin, end = np.full((2, len(launch)), MISSING, np.int64)
    begin[known] = trace.launches["start_ns"].to_numpy(np.int64)[launch[known]]
    end[known] = begin[known] + trace.launches["duration_ns"].to_numpy(np.int64)[launch[known]]
    return begin, end


def following(starts: Ints, gap_ends: Ints) -> Ints:
    """The row of the first activity that ends each gap; `starts` is sorted. Shapes: (n,), (m,) -> (m,)."""
    return np.searchsorted(starts, gap_ends, side="left")


def _between(busy: Union, trace: Trace) -> Union:
    """The gaps in which one window of the trace ends and the next one begins."""
    gap_start, gap_end = gaps(busy)
    opened = np.array([window.start_ns for window in trace.windows[1:]], np.int64)
    holds = np.searchsorted(opened, gap_start, side="left") < np.searchsorted(opened, gap_end, side="right")
    return union(gap_start[holds], gap_end[holds])


def _unrecorded(busy: Union, start: Ints, launch_end: Ints, between: Union) -> Union:
    gap_start, gap_end = gaps(busy)
    if not len(gap_start):
        return union(gap_start, gap_end)
    launched = launch_end[following(start, gap_end)]
    waited = gap_end - np.maximum(launched, gap_start)
    long = (waited > UNRECORDED_AFTER_NS) & (waited >= UNRECORDED_SHARE * (gap_end - gap_start))
    cut = ((launched != MISSING) & long) | (covered(between, gap_start, gap_end) > 0)
    return union(gap_start[cut], gap_end[cut])


def _timed(steps: pd.DataFrame, unrecorded: Union, between: Union) -> pd.DataFrame:
    start, end = steps["start_ns"].to_numpy(np.int64), steps["end_ns"].to_numpy(np.int64)
    period = np.full(len(steps), np.nan)
    (whole,) = np.nonzero(steps["parent_step"].to_numpy() < 0)
    before, after = start[whole[:-1]], start[whole[1:]]
    within = np.where(covered(between, before, after) > 0, np.nan, after - before - covered(unrecorded, before, after))
    period[whole[:-1]] = within
    return steps.assign(duration_ns=end - start - covered(unrecorded, start, end), period_ns=period)
