"""Takes the mean complete step of a phase apart into kernels and idle time, exactly.

A step's wall time is its period (to the start of the next step), for a step that has none its duration. What runs in
that time belongs to it, cut at its ends; activities that overlap share the time, so that rows and idle time add up to
the wall time. The idle time of the mean step is divided among its causes as the ledger divides the phase's.

The fixed part of a kernel's time is that of the device's own shortest kernels: the 5th percentile of all kernel
durations, at most 2 us (method: 1.5 to 2 us per kernel), for a recording may hold long kernels only.

A kernel is hidden behind the host where, before the host next waits for the device or the step ends, the device falls
idle because a launch is late: had the kernel been faster, that gap would have been longer. What the host does between
two steps, or after a wait, it does when the device is done, so faster kernels let it begin earlier.

The host's own time for a step is what lies between its first launch call and the return of its last one, less the time
in which the host waited for the device, and the gap to the next step. A launch call that takes many times the usual one
waited for room in a queue.

What could be wrong: one outlying step counts as much as any other; a kernel that is nothing but fixed time on one
device may be hidden in longer ones on another.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.forecast.described import with_described_work
from traceanalyzer.analysis.forecast.gaps import Gaps, classed_gaps
from traceanalyzer.analysis.forecast.groups import KEYS, with_keys
from traceanalyzer.analysis.forecast.model import COLUMNS, WORK, StepModel
from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.analysis.ledger import Ledger
from traceanalyzer.analysis.timeline import Timeline, tensor_core_times
from traceanalyzer.analysis.waits import host_waits
from traceanalyzer.analysis.work.columns import distinct, objects
from traceanalyzer.trace.tables import KERNEL, MEMSET, MISSING

MOST_FIXED_NS = 2_000.0
FIXED_PERCENTILE = 5
QUEUE_FULL = 20.0
"""A launch call that takes this many times the median one waited for the device."""

Ints = npt.NDArray[np.int64]


def step_model(timeline: Timeline, ledger: Ledger, phase: str) -> StepModel | None:
    """The mean complete step of a phase, or None where the device has no complete step of it that took any time."""
    steps = timeline.complete_steps
    steps = steps[steps["phase"] == phase]
    start, end, wall = _intervals(timeline, steps)
    if not wall.sum() > 0:
        return None
    count = len(steps)
    pieces = _pieces(timeline, start, end)
    gaps = classed_gaps(timeline, start, end)
    pieces["hidden"] = pieces["share"] * _hidden(pieces["end"].to_numpy(), gaps, end)
    rows = _rows(timeline, pieces, count)
    busy, hidden = float(rows["duration_ns"].sum()), float(rows["hidden_ns"].sum())
    mean = float(wall.sum()) / count
    idle = _idle(ledger, phase, max(mean - busy, 0.0))
    late = gaps.late & gaps.inside
    waits = min(float((gaps.end - gaps.start)[late].sum()) / count, idle.get("idle_launch", 0.0))
    tokens, context_sum, sequences = (_mean(steps[name]) for name in ("tokens", "context_sum", "sequences"))
    told = with_described_work(rows, timeline, tokens, context_sum, sequences) if phase == "decode" else None
    return StepModel(
        phase=phase,
        steps=count,
        rows=rows if told is None else told,
        described=told is not None or _by_config(timeline, steps),
        idle_ns=MappingProxyType(idle),
        host_ns=hidden + waits,
        own_host_ns=_own_host(timeline, steps, wall),
        late_latency_ns=float(late.sum()) / count * gaps.latency_ns,
        tokens=tokens,
        sequences=sequences,
        context_sum=context_sum,
        output_tokens=_output(steps, phase),
    )


def _mean(values: pd.Series) -> float | None:
    return None if values.isna().any() else float(values.mean())


def _by_config(timeline: Timeline, steps: pd.DataFrame) -> bool:
    """Whether the work of any kernel of the steps comes from the model's description."""
    of = timeline.table.loc[timeline.table["source"] == "model-config", "step"]
    return bool(of.isin(steps.index).any())


def _output(steps: pd.DataFrame, phase: str) -> float | None:
    """Tokens put out by a decode step where each sequence gets one, tokens worked on by any other."""
    if phase != "decode":
        return _mean(steps["tokens"])
    one_each = bool((steps["decode_tokens"] == steps["decode_sequences"]).all())
    return _mean(steps["decode_tokens"]) if one_each else None


def _intervals(timeline: Timeline, steps: pd.DataFrame) -> tuple[Ints, Ints, Ints]:
    """Where each step's wall time begins and ends, and how much of it was recorded."""
    start, end = steps["start_ns"].to_numpy(np.int64), steps["end_ns"].to_numpy(np.int64).copy()
    every = timeline.steps
    whole = np.sort(every.loc[every["parent_step"] < 0, "start_ns"].to_numpy(np.int64))
    has_period = steps["period_ns"].notna().to_numpy()
    after = np.searchsorted(whole, start[has_period], side="right")
    end[has_period] = whole[np.minimum(after, len(whole) - 1)] if len(whole) else end[has_period]
    end[:-1] = np.minimum(end[:-1], np.maximum(start[1:], start[:-1]))
    return start, end, end - start - timeline.unrecorded_between(start, end)


def _pieces(timeline: Timeline, start: Ints, end: Ints) -> pd.DataFrame:
    """The activity inside the steps, cut at their ends: table row, end, share of the wall time, part of the row."""
    table = timeline.table
    begins = table["start_ns"].to_numpy(np.int64)
    ends = begins + table["duration_ns"].to_numpy(np.int64)
    first = np.searchsorted(end, begins, side="right")
    last = np.searchsorted(start, np.maximum(ends, begins + 1), side="left") - 1
    count = np.maximum(last - first + 1, 0)
    row = np.repeat(np.arange(len(table)), count)
    step = np.repeat(first, count) + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    piece_start = np.maximum(begins[row], start[step])
    piece_end = np.minimum(ends[row], end[step])
    whole = (ends - begins)[row]
    part = np.divide(piece_end - piece_start, whole, out=np.ones(len(row)), where=whole > 0)
    share = intervals.shared_time(piece_start, np.maximum(piece_end, piece_start))
    return pd.DataFrame({"row": row, "end": piece_end, "share": share, "part": part})


def _idle(ledger: Ledger, phase: str, total: float) -> dict[str, float]:
    """The idle time of the mean step by cause, in the proportions that the ledger has for the phase."""
    table = ledger.table[(ledger.table["phase"] == phase) & ledger.table["bucket"].str.startswith("idle_")]
    known = table[~table["bucket"].isin(("idle_artefact", "idle_no_work"))].set_index("bucket")["ns"]
    if not total:
        return {}
    if not known.sum():
        return {"idle_unknown": total}
    return {str(bucket): total * float(ns) / float(known.sum()) for bucket, ns in known.items()}


def fixed_ns(timeline: Timeline) -> float:
    """What a kernel takes on this device however little it does; see the module docstring."""
    kernels = timeline.table["kind"].to_numpy() == KERNEL
    durations = timeline.table["duration_ns"].to_numpy(np.float64)[kernels]
    durations = durations[durations > 0]
    return min(float(np.percentile(durations, FIXED_PERCENTILE)), MOST_FIXED_NS) if len(durations) else 0.0


def _hidden(ends: Ints, gaps: Gaps, step_ends: Ints) -> npt.NDArray[np.float64]:
    """1 where a late gap follows an activity before the next wait of the host or the end of its step, else 0."""
    late = gaps.start[gaps.late & gaps.inside]
    resets = np.sort(np.concatenate((gaps.start[gaps.waited], step_ends)))
    never = np.iinfo(np.int64).max

    def following(places: Ints) -> Ints:
        return np.append(places, never)[np.searchsorted(places, ends, side="left")]

    return (following(late) < following(resets)).astype(np.float64)


def _own_host(timeline: Timeline, steps: pd.DataFrame, wall: Ints) -> float:
    """What the host takes for the mean step when it never has to wait; 0 where no launch of the steps was recorded."""
    table = timeline.table
    launched = table["step"].isin(steps.index) & (table["launch_start_ns"] != MISSING)
    rows = table.loc[launched, ["step", "launch", "launch_start_ns", "launch_end_ns"]]
    if not len(rows):
        return 0.0
    calls = rows.drop_duplicates(["step", "launch"])
    first = rows.groupby("step")["launch_start_ns"].min().to_numpy(np.int64)
    last = rows.groupby("step")["launch_end_ns"].max().to_numpy(np.int64)
    begin, end = calls["launch_start_ns"].to_numpy(np.int64), calls["launch_end_ns"].to_numpy(np.int64)
    full = (end - begin) > QUEUE_FULL * np.median(end - begin)
    waits_begin, waits_end = host_waits(timeline)
    waits = intervals.union(np.append(waits_begin, begin[full]), np.append(waits_end, end[full]))
    issue = float((last - first - intervals.covered(waits, first, last)).sum())
    between = np.maximum(wall - steps["duration_ns"].to_numpy(np.int64), 0)
    return min(issue + float(between.sum()), float(wall.sum())) / len(steps)


def _rows(timeline: Timeline, pieces: pd.DataFrame, steps: int) -> pd.DataFrame:
    frame = _columns(timeline, pieces)
    summed = ["count", "duration_ns", "fixed_ns", "hidden_ns", *WORK]
    number, first = distinct([pd.factorize(frame[key])[0].astype(np.int64) for key in KEYS])
    groups = frame[list(KEYS)].iloc[first].reset_index(drop=True)
    for name in summed:  # one unknown makes a sum unknown; groupby's own sum would skip it
        unknown = np.bincount(number, weights=frame[name].isna().to_numpy(), minlength=len(first)) > 0
        groups[name] = frame[name].groupby(number).sum().mask(unknown) / steps
    total = groups.groupby(list(KEYS), dropna=False, sort=True).first().reset_index()
    total = total.sort_values("duration_ns", ascending=False, kind="stable").reset_index(drop=True)
    return total[list(COLUMNS)]


def _columns(timeline: Timeline, pieces: pd.DataFrame) -> pd.DataFrame:
    """What tells the pieces apart and what is summed over them, one row per piece."""
    needed = timeline.table.columns.intersection([*KEYS, "kind", "flops", *WORK])
    table = timeline.table[needed].iloc[pieces["row"].to_numpy()].reset_index(drop=True)
    kind = table["kind"].to_numpy()
    part, share = pieces["part"].to_numpy(), pieces["share"].to_numpy()
    category = table["category"].to_numpy(object, copy=True)
    category[kind != KERNEL] = "memcpy"
    category[kind == MEMSET] = "memset"
    matrix = table["category"].isin(MATRIX_CATEGORIES).to_numpy()
    tensor = np.where(matrix, tensor_core_times(table, timeline.device), np.nan)
    work = {
        name: np.where(kind == KERNEL, table[name].to_numpy(np.float64), np.nan) * part
        for name in WORK
        if name in table
    }
    work.setdefault("weight_bytes_min", np.full(len(table), np.nan))
    frame = pd.DataFrame({
        "name": table["name"].to_numpy(), "category": objects(category),
        "role": objects(table["role"].to_numpy(object)), "dtype": objects(table["dtype"].to_numpy(object)),
        "tensor_core": table["tensor_core"].to_numpy(),
        "count": part, "duration_ns": share, "hidden_ns": pieces["hidden"].to_numpy(),
        "fixed_ns": np.where(kind == KERNEL, np.minimum(fixed_ns(timeline) * part, share), 0.0),
        **work, "tensor_compute_ns": tensor * part,
    }, copy=False)  # fmt: skip
    return with_keys(frame)
