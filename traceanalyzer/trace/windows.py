"""Joins the windows of one process to one trace on the epoch clock, so that nothing counts twice and nothing mixes.

What is numbered anew by every window (correlations, external ids, graphs) gets numbers that no other window has, and
so do threads: nothing that is told by neighbours on a thread can then reach over the time between two windows, which
was not recorded. Texts are merged. What could be wrong: windows of two processes that do not say which process they are
pass for those of one; a thread that worked in two windows is two threads of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.trace import notes
from traceanalyzer.trace.codes import TEXT_COLUMNS
from traceanalyzer.trace.collector import number, section
from traceanalyzer.trace.merged import merged_blocks
from traceanalyzer.trace.tables import MISSING, Metadata, Note, Source, Trace, Window

TABLES = ("kernels", "launches", "ops", "annotations", "syncs", "counters", "frames")
_NUMBERED = ("correlation", "external_id", "graph_id", "graph_node_id")
"""Columns whose values mean the same thing in every table, and something else in every window."""
_ORDER = {
    "kernels": ["device", "start_ns"],
    **{name: ["thread", "start_ns", "before_ns"] for name in ("ops", "frames")},
}


def by_process(traces: Sequence[Trace]) -> list[Trace]:
    """The traces with the windows of each rank joined, in the order of the ranks' first traces.

    Traces are windows of one rank where their recorder's blocks say so: the same rank, no other process, other window
    numbers. All else is left as it is.
    """
    found: dict[object, list[Trace]] = {}
    for place, trace in enumerate(traces):
        key = _process(trace)
        found.setdefault(place if key is None else key, []).append(trace)
    out: list[Trace] = []
    for windows in found.values():
        numbers = [section(trace.metadata.collector, "window").get("number") for trace in windows]
        out += [joined(windows)] if len(set(numbers)) == len(numbers) > 1 else windows
    return [trace if trace.recording is not None else _with_losses(trace) for trace in out]


def _with_losses(trace: Trace) -> Trace:
    """The trace with notes on what its step log lacks; for a recording, its manifest says that of all processes."""
    log, book = section(trace.metadata.collector, "steplog"), notes.NoteBook()
    book.add(notes.RECORDING_STEPS_LOST, round(number(log, "steps_overwritten") or 0))
    book.add(notes.RECORDING_STEPLOG_SHORT, round(number(log, "steps_beyond_log") or 0))
    found = book.notes()
    return replace(trace, quality=(*trace.quality, *found)) if found else trace


def _process(trace: Trace) -> tuple[object, ...] | None:
    """What is the same for all windows of one process; None where the recorder does not number its windows."""
    window = section(trace.metadata.collector, "window")
    number = window.get("number")
    if trace.windows or not isinstance(number, int) or isinstance(number, bool):
        return None
    return trace.metadata.rank, trace.metadata.world_size, window.get("pid_hash")


def joined(traces: Sequence[Trace]) -> Trace:
    """One trace of several windows of one process.

    A window that was recorded while an earlier one was, which no recorder does, is left out and noted. Without a
    common clock (a base of zero and times since boot are one too) windows lie where their times say.

    Args:
        traces: at least two, each read from one file.
    """
    base = min(trace.metadata.base_time_ns for trace in traces)
    placed = sorted(((_span(trace, base), trace) for trace in traces), key=lambda pair: pair[0])
    kept: list[tuple[Trace, Window]] = []
    overlapping = 0
    for (start, end), trace in placed:
        if kept and start < kept[-1][1].end_ns:
            overlapping += 1
            continue
        kept.append((trace, Window(trace.source, trace.metadata, len(trace.kernels), start, end)))
    windows = [trace for trace, _ in kept]
    strings = tuple(sorted({text for trace in windows for text in trace.strings}))
    threads: list[str] = []
    shifted: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    used = [0] * len(_NUMBERED)
    rows = 0
    for trace in windows:
        frames = _shifted(trace, base, strings, len(threads), rows, used)
        threads += trace.threads
        rows += len(trace.ops)
        for name, frame in frames.items():
            shifted[name].append(frame)
    tables = {name: _sorted(name, pd.concat(frames, ignore_index=True)) for name, frames in shifted.items()}
    return Trace(
        source=_source([trace.source for trace in windows]),
        strings=strings,
        threads=tuple(threads),
        metadata=_metadata([trace.metadata for trace in windows], base),
        quality=_notes(traces, overlapping),
        windows=tuple(window for _, window in kept),
        recording=windows[0].recording,
        kernels=tables["kernels"],
        launches=tables["launches"],
        ops=tables["ops"],
        annotations=tables["annotations"],
        syncs=tables["syncs"],
        counters=tables["counters"],
        frames=tables["frames"],
    )


def _span(trace: Trace, base: int) -> tuple[int, int]:
    """When the first event of a trace began and the last one ended, in ns since `base`."""
    begins, ends = [], []
    for name in TABLES:
        table: pd.DataFrame = getattr(trace, name)
        if len(table):
            start = table["start_ns"]
            begins.append(int(start.min()))
            ends.append(int((start + table["duration_ns"]).max()) if "duration_ns" in table else int(start.max()))
    shift = trace.metadata.base_time_ns - base
    return min(begins, default=0) + shift, max(ends, default=0) + shift


def _shifted(
    trace: Trace, base: int, strings: Sequence[str], threads: int, ops: int, used: list[int]
) -> dict[str, pd.DataFrame]:
    """The tables of one window on the common clock, with the codes and numbers of the joined trace.

    Args:
        trace: the window.
        base: zero of the common clock, ns since the epoch.
        strings: all texts, sorted.
        threads, ops: how many the windows before it have.
        used: how many numbers of each kind they have; raised by those of this one.
    """
    place = {text: code for code, text in enumerate(strings)}
    codes = np.append(np.array([place[text] for text in trace.strings], np.int32), np.int32(MISSING))
    frames: dict[str, pd.DataFrame] = {name: getattr(trace, name).copy() for name in TABLES}
    for kind, column in enumerate(_NUMBERED):
        used[kind] = _renumber([frame for frame in frames.values() if column in frame], column, used[kind])
    for frame in frames.values():
        frame["start_ns"] += trace.metadata.base_time_ns - base
        for column in TEXT_COLUMNS:
            if column in frame:
                frame[column] = codes[frame[column].to_numpy()]
        if "thread" in frame:
            thread = frame["thread"].to_numpy()
            frame["thread"] = np.where(thread >= 0, thread + threads, thread).astype(np.int32)
    parent = frames["ops"]["parent"].to_numpy()
    frames["ops"]["parent"] = np.where(parent >= 0, parent + ops, parent).astype(np.int32)
    return frames


def _renumber(frames: Sequence[pd.DataFrame], column: str, used: int) -> int:
    """Replace all ids above zero by those that follow the `used` ones, in the same order; returns how many there are.

    What is no id (zero and below) stays as it is.
    """
    ids = np.unique(np.concatenate([frame[column].to_numpy(np.int64) for frame in frames]))
    ids = ids[ids > 0]
    for frame in frames:
        values = frame[column].to_numpy(np.int64)
        frame[column] = np.where(values > 0, np.searchsorted(ids, values) + 1 + used, values)
    return used + len(ids)


def _sorted(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A joined table in the order that `tables` gives, the rows that ops refer to moved with them."""
    if name in ("ops", "frames"):
        table["before_ns"] = -table["duration_ns"]
    keys = [table[column].to_numpy() for column in reversed(_ORDER.get(name, ["start_ns"]))]
    order = np.lexsort(keys)
    table = table.iloc[order].reset_index(drop=True)
    if name == "ops":
        back = np.full(len(order) + 1, MISSING, np.int32)
        back[order] = np.arange(len(order), dtype=np.int32)
        table = table.assign(parent=back[table["parent"].to_numpy()])
    return table.drop(columns="before_ns", errors="ignore")


def _source(sources: Sequence[Source]) -> Source:
    """What stands for all files: the name and hash of the first, the sizes of all."""
    return replace(
        sources[0], bytes=sum(source.bytes for source in sources), events=sum(source.events for source in sources)
    )


def _metadata(windows: Sequence[Metadata], base: int) -> Metadata:
    """The facts of the first window; devices, versions and the recorder's block from all of them."""
    producer: dict[str, str] = {}
    for metadata in windows:
        producer |= metadata.producer or {}
    return replace(
        windows[0],
        base_time_ns=base,
        devices=next((metadata.devices for metadata in windows if metadata.devices), ()),
        producer=producer or None,
        record_shapes=_any([metadata.record_shapes for metadata in windows]),
        with_stack=_any([metadata.with_stack for metadata in windows]),
        collector=merged_blocks([metadata.collector for metadata in windows if metadata.collector]),
    )


def _any(flags: Sequence[bool | None]) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _notes(traces: Sequence[Trace], overlapping: int) -> tuple[Note, ...]:
    """The notes of all windows, the counts of those that say the same added up."""
    found: dict[tuple[str, str], Note] = {}
    for note in (note for trace in traces for note in trace.quality):
        key = (note.code, note.detail)
        found[key] = replace(note, count=note.count + (found[key].count if key in found else 0))
    if overlapping:
        found[notes.WINDOWS_OVERLAP, ""] = Note(
            notes.WINDOWS_OVERLAP, notes.SEVERITY[notes.WINDOWS_OVERLAP], overlapping
        )
    return tuple(found.values())
