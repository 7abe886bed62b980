"""Turns collected columns into the tables of a `Trace`: checked, sorted, nested; and notes what looks wrong.

Rows whose times cannot be true are left out and counted, and so are kernels that were recorded twice; everything else
is kept as recorded. What could be wrong: the limits (a day for one event, a day around the median start) are judgement,
chosen far beyond any real recording window; and of two equal kernels that one graph ran side by side, in a file with
neither graph nodes nor fractions of a microsecond, one is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.trace import notes
from traceanalyzer.trace.codes import ThreadKey, renumber
from traceanalyzer.trace.columns import Columns
from traceanalyzer.trace.growing import Array, Chunk
from traceanalyzer.trace.nesting import parents
from traceanalyzer.trace.numbers import Bools, Ints
from traceanalyzer.trace.tables import (
    ANNOTATION_COLUMNS,
    COUNTER_COLUMNS,
    FRAME_COLUMNS,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MISSING,
    OP_COLUMNS,
    SYNC_COLUMNS,
    USER,
)

_SCHEMAS: Mapping[str, Mapping[str, type]] = {
    "kernels": KERNEL_COLUMNS,
    "launches": LAUNCH_COLUMNS,
    "ops": OP_COLUMNS,
    "annotations": ANNOTATION_COLUMNS,
    "syncs": SYNC_COLUMNS,
    "counters": COUNTER_COLUMNS,
    "frames": FRAME_COLUMNS,
}
LONGEST_NS = 24 * 3600 * 10**9
"""No single event of a recording lasts longer, nor lies further from the median event."""

_LATEST_NS = 9 * 10**18
_STEP_NAMES = ("ProfilerStep#", "ta.step[")
_IDENTITY = ("device", "stream", "start_ns", "duration_ns", "name", "correlation", "graph_node_id")
"""What no two kernels of one stream share."""
_REFERENCES = ("kernels", "ops", "launches", "annotations")


@dataclass(frozen=True)
class Finished:
    """The tables of a trace by name, and what their codes stand for."""

    tables: dict[str, pd.DataFrame]
    strings: tuple[str, ...]
    threads: tuple[ThreadKey, ...]


def finish(columns: Columns, book: notes.NoteBook) -> Finished:
    """The tables of a trace; empties `columns`."""
    tables = {name: columns.tables[name].take() or _empty(schema) for name, schema in _SCHEMAS.items()}
    strings, threads = renumber(tables, columns.strings, columns.threads)
    _move_steps(tables, strings)
    _drop_impossible(tables, book)
    for name, table in tables.items():
        _sort(name, table)
    tables["kernels"] = _once(tables["kernels"], book)
    whole = _whole_microseconds(tables)
    if whole:
        book.add(notes.WHOLE_MICROSECONDS)
    ops = tables["ops"]
    ops["parent"] = parents(
        ops["thread"], ops["start_ns"], ops["start_ns"] + ops["duration_ns"], slack_ns=1000 if whole else 0
    )
    _check_kernels(tables["kernels"], tables["launches"], book)
    frames = {name: _frame(tables.pop(name), schema) for name, schema in _SCHEMAS.items()}
    return Finished(frames, strings, threads)


def _frame(table: Chunk, schema: Mapping[str, type]) -> pd.DataFrame:
    columns: Chunk = {column: table.pop(column).astype(kind, copy=False) for column, kind in schema.items()}
    return pd.DataFrame(columns, copy=False)


def _empty(schema: Mapping[str, type]) -> Chunk:
    return {column: np.empty(0, kind) for column, kind in {**schema, "known": np.bool_}.items()}


def _select(table: Chunk, rows: Array) -> Chunk:
    return {column: values[rows] for column, values in table.items()}


def _move_steps(tables: dict[str, Chunk], strings: tuple[str, ...]) -> None:
    """Step marks that an old schema writes as ordinary operators become annotations."""
    ops, annotations = tables["ops"], tables["annotations"]
    codes = [code for code, text in enumerate(strings) if text.startswith(_STEP_NAMES)]
    steps = np.isin(ops["name"], codes)
    if not steps.any():
        return
    moved = _select(ops, steps)
    count = len(moved["name"])
    moved |= {"kind": np.full(count, USER, np.int8)}
    moved |= {column: np.full(count, MISSING, np.int64) for column in ("device", "stream")}
    tables["annotations"] = {
        column: np.concatenate((values, moved[column].astype(values.dtype))) for column, values in annotations.items()
    }
    tables["ops"] = _select(ops, ~steps)


def _drop_impossible(tables: dict[str, Chunk], book: notes.NoteBook) -> None:
    lost: dict[str, Counter[str]] = {}
    center = _center(tables)
    for name, table in tables.items():
        keep = np.ones(len(table["known"]), np.bool_)
        start = table["start_ns"]
        duration = table.get("duration_ns", np.zeros_like(start))
        for code, bad in (
            (notes.EVENTS_WITHOUT_TIME, ~table["known"]),
            (notes.NEGATIVE_DURATION, duration < 0),
            (notes.ABSURD_DURATION, duration > LONGEST_NS),
            (notes.OUT_OF_RANGE, (np.abs(start) > _LATEST_NS) | _far(start, center)),
        ):
            fresh = bad & keep
            if fresh.any():
                lost.setdefault(code, Counter())[name] += int(fresh.sum())
                keep &= ~fresh
        del table["known"]
        if not keep.all():
            tables[name] = _select(table, keep)
    for code, counts in lost.items():
        book.add(code, counts.total(), ", ".join(f"{name} {count}" for name, count in counts.items()))


def _center(tables: Mapping[str, Chunk]) -> int | None:
    """The median start of the kernels, or of the first table that has rows."""
    for name in _REFERENCES:
        start = tables[name]["start_ns"][tables[name]["known"]]
        if len(start):
            return int(np.partition(start, len(start) // 2)[len(start) // 2])
    return None


def _far(start: Ints, center: int | None) -> Bools:
    """Whether an event begins more than LONGEST_NS from the center, without overflowing."""
    if center is None:
        return np.zeros(len(start), np.bool_)
    return (start > min(center + LONGEST_NS, _LATEST_NS)) | (start < max(center - LONGEST_NS, -_LATEST_NS))


def _sort(name: str, table: Chunk) -> None:
    keys: tuple[Array, ...] = (table["start_ns"],)
    if name == "kernels":
        keys = (table["start_ns"], table["device"])
    elif name in ("ops", "frames"):
        keys = (-table["duration_ns"], table["start_ns"], table["thread"])
    order = np.lexsort(keys)  # stable: equal rows keep the order of the file
    for column, values in table.items():
        table[column] = values[order]


def _whole_microseconds(tables: Mapping[str, Chunk]) -> bool:
    rows = 0
    for name in ("kernels", "launches", "ops"):
        for column in ("start_ns", "duration_ns"):
            values = tables[name][column]
            rows += len(values)
            if (values % 1000).any():
                return False
    return rows > 0


def _once(kernels: Chunk, book: notes.NoteBook) -> Chunk:
    """The kernels without those that repeat another in everything that tells kernels apart: its copy in the file.

    A copy left in would look like a second kernel of the same launch, and so like the replay of a graph.
    """
    order = np.lexsort(tuple(kernels[column] for column in reversed(_IDENTITY)))
    later = order[1:]
    copies = later[
        _repeats(kernels, order, _IDENTITY) & (kernels["correlation"][later] >= 0) & (kernels["duration_ns"][later] > 0)
    ]
    book.add(notes.DUPLICATE_KERNELS, len(copies))
    if not len(copies):
        return kernels
    keep = np.ones(len(kernels["start_ns"]), np.bool_)
    keep[copies] = False
    return _select(kernels, keep)


def _check_kernels(kernels: Chunk, launches: Chunk, book: notes.NoteBook) -> None:
    count = len(kernels["start_ns"])
    if not count:
        return
    correlated = kernels["correlation"] >= 0
    book.add(notes.KERNELS_WITHOUT_CORRELATION, int((~correlated).sum()))
    launched = np.isin(kernels["correlation"], launches["correlation"])
    book.add(notes.KERNELS_WITHOUT_LAUNCH, int((correlated & ~launched).sum()))
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    order = np.lexsort((start, kernels["stream"], kernels["device"]))
    same = _repeats(kernels, order, ("device", "stream"))
    overlaps = same & (start[order][1:] < end[order][:-1])
    book.add(notes.OVERLAPPING_KERNELS, int(overlaps.sum()))


def _repeats(table: Chunk, order: npt.NDArray[np.intp], columns: tuple[str, ...]) -> Bools:
    """For each row but the first, in `order`: whether it equals the one before in all `columns`."""
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for column in columns:
        values = table[column][order]
        same &= values[1:] == values[:-1]
    return same
