"""The kernels of a graph capture: nothing of it ran, but its launches name their kernels, and its ops have shapes.

ROCm's launch calls record the name of the kernel, its grid and its block (Kineto, RoctracerActivity and its successor);
CUDA's do not, so a capture recorded there is matched by its ops, see `unnamed`. A captured graph lies between the calls
that begin and end the capture on one thread; serving engines label it `capture_<tokens>_<mode>` (vLLM and SGLang, with
the profiler on during capture), and a label that spans several graphs is that of one batch captured in pieces.

What could be wrong: SGLang's label counts sequences, which are fewer than the tokens where it verifies drafts; such a
graph has its tokens from the matrix products.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis import activity as activities
from traceanalyzer.analysis import kernels, steps, work
from traceanalyzer.analysis.replay.helpers import fill_helpers
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.replay.reference import Evidence, Ints, Part, evidence_of_steps
from traceanalyzer.trace.tables import KERNEL, KERNEL_COLUMNS, MISSING, USER, Trace

_BEGIN, _END = re.compile(r"StreamBeginCapture"), re.compile(r"StreamEndCapture")
_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel")
_LABEL = re.compile(r"capture_\d{1,9}_\w+", re.ASCII)


def evidence_of(trace: Trace) -> Evidence:
    """What a trace given beside another one can be matched with: its captured graphs, else its eager steps.

    Without parts where it has neither: no capture with ops that record shapes, and no step with recorded shapes.

    Raises:
        UnsupportedTraceError: it can be no trace of a model, see `analysis.activity`.
    """
    parts = _captured(trace)
    rows = np.unique(np.concatenate([one.rows for one in parts])) if parts else np.empty(0, np.int64)
    run = _as_run(trace, rows) if len(rows) else trace
    activity = activities.build(run)
    measured = work.measure(run, activity, kernels.classes(run, activity))
    if not len(rows):
        found = steps.find(trace, activity, measured)
        return evidence_of_steps(
            Recorded(trace, activity, measured, found.table, found.activity_step), trace.source.name
        )
    placed = tuple(replace(part, rows=np.searchsorted(rows, part.rows)) for part in parts)
    measured = fill_helpers(run, activity, work.fill_experts(run, activity, measured, None))
    named = bool((run.kernels["name"].to_numpy() >= 0).all())
    shaped = bool((measured["flops"].notna() | measured["bytes"].notna()).any())
    return Evidence(run, activity, measured, placed if shaped else (), trace.source.name, named=named)


def _captured(trace: Trace) -> list[Part]:
    launches = trace.launches
    names = np.array([trace.text(code) for code in launches["name"].tolist()], object)
    begin, end = (
        np.array([pattern.search(name) is not None for name in names], np.bool_) for pattern in (_BEGIN, _END)
    )
    thread, start = (launches[column].to_numpy(np.int64) for column in ("thread", "start_ns"))
    launched = launches["launched"].to_numpy() >= 0
    if not launched.any():
        launched = np.array([_LAUNCH.search(name) is not None for name in names], np.bool_)
    out = []
    for on in np.unique(thread[begin]).tolist():
        own = np.flatnonzero(thread == on)  # in order of their starts
        ends, work = own[end[own]], own[launched[own]]
        labels = _labels(trace, on)
        spans: dict[object, tuple[str, int | None, int, int]] = {}
        for opened in start[own[begin[own]]].tolist():
            closing = np.searchsorted(start[ends], opened, side="right")
            if closing < len(ends):
                key, name, tokens = _label(trace, labels, opened)
                first = spans[key][2] if key in spans else opened
                spans[key] = (name, tokens, first, int(start[ends[closing]]))
        for name, tokens, first, last in spans.values():
            inside = slice(np.searchsorted(start[work], first, "right"), np.searchsorted(start[work], last, "left"))
            if len(work[inside]):
                out.append(Part(name, tokens, work[inside]))
    return out


def _labels(trace: Trace, thread: int) -> pd.DataFrame:
    """The labels of captures on a thread, in order of their starts."""
    codes = [code for code in trace.annotations["name"].unique().tolist() if _LABEL.fullmatch(trace.text(code))]
    found = trace.annotations
    found = found[(found["kind"] == USER) & (found["thread"] == thread) & found["name"].isin(codes)]
    return found.sort_values("start_ns", kind="stable")


def _label(trace: Trace, labels: pd.DataFrame, time: int) -> tuple[object, str, int | None]:
    """What the outermost label around a time is: a key for it, its text and the size in it."""
    start = labels["start_ns"].to_numpy(np.int64)
    around = np.flatnonzero((start <= time) & (start + labels["duration_ns"].to_numpy(np.int64) > time))
    if not len(around):
        return time, "captured graph", None
    text = trace.text(int(labels["name"].iloc[around[0]]))
    return (int(around[0]), text), text, int(text.split("_")[1])


def _as_run(trace: Trace, rows: Ints) -> Trace:
    """The trace as if the launched kernels had run one after the other, each as long as the next."""
    launches = trace.launches.iloc[rows]
    table = pd.DataFrame({name: np.full(len(rows), MISSING, kind) for name, kind in KERNEL_COLUMNS.items()})
    table["name"] = launches["launched"].to_numpy(np.int32)
    table["kind"] = np.int8(KERNEL)
    table["start_ns"] = launches["start_ns"].to_numpy(np.int64)
    table["duration_ns"] = np.int64(1)
    table["device"] = np.int32(0)
    table["stream"] = np.int64(0)
    table["correlation"] = launches["correlation"].to_numpy(np.int64)
    for column, axes in (("grid", "grid"), ("block", "block")):
        sizes = {code: _triple(trace.text(code)) for code in launches[column].unique().tolist()}
        values = np.array([sizes[code] for code in launches[column].tolist()], np.int32).reshape(-1, 3)
        for place, axis in enumerate("xyz"):
            table[f"{axes}_{axis}"] = values[:, place]
    return replace(trace, kernels=table)


def _triple(text: str) -> tuple[int, int, int]:
    """Three sizes of JSON text, MISSING where it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == 3 and all(type(n) is int and 0 < n < 1 << 31 for n in found):
        return found[0], found[1], found[2]
    return MISSING, MISSING, MISSING
