"""Reads what a command is given: files, folders, recordings, in the order of their names.

What could be wrong: a folder that is written to meanwhile is read as it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceanalyzer.trace import notes
from traceanalyzer.trace.folder import trace_files, traces_in
from traceanalyzer.trace.kineto import read_kineto
from traceanalyzer.trace.recording import MANIFEST, Manifest, find, read_recording
from traceanalyzer.trace.refuse import printable
from traceanalyzer.trace.tables import Note, Trace


def read_trace(path: str | Path) -> Trace:
    """Read one trace file, or standard input for "-".

    Raises:
        TraceAnalyzerError: one line that says what is wrong with the file and what to do; see `read_kineto`.
    """
    return read_kineto(path)


def read_traces(paths: Sequence[str | Path]) -> list[Trace]:
    """Read several files, folders and recordings: of a folder every trace in it, sorted by name.

    Of a recording its windows are read, as many as memory should hold; see `trace.recording`. Files without a single
    byte are left out and noted where another path is left.

    Raises:
        TraceAnalyzerError: as `read_trace`; also for no path at all, for a folder without traces, and for one with
            several recordings.
    """
    if not paths:
        return [read_trace(file) for file in trace_files(paths)]
    empty = [path for path in paths if _is_empty(path)]
    kept = [path for path in paths if path not in empty] if len(empty) < len(paths) else paths
    traces: list[Trace] = []
    for path in kept:
        manifest = _recording(path)
        if manifest is not None:
            traces += read_recording(manifest, read_trace)
            continue
        found = [read_trace(file) for file in trace_files([path])]
        if str(path) != "-" and (Path(path) / MANIFEST).is_file():
            found[0] = _noted(found[0], notes.RECORDING_UNREADABLE)
        traces += found
    if len(kept) < len(paths):
        traces[0] = _noted(traces[0], notes.EMPTY_FILES, len(empty), printable(Path(empty[0]).name))
    return traces


def _is_empty(path: str | Path) -> bool:
    try:
        return str(path) != "-" and Path(path).is_file() and Path(path).stat().st_size == 0
    except (OSError, ValueError):  # the reader says what is wrong with it
        return False


def _noted(trace: Trace, code: str, count: int = 1, detail: str = "") -> Trace:
    """The trace with one more note before its own."""
    return replace(trace, quality=(Note(code, notes.SEVERITY[code], count, detail), *trace.quality))


def _recording(path: str | Path) -> Manifest | None:
    return None if str(path) == "-" else find(Path(path), traces_in)
