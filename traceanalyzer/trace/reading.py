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
from traceanalyzer.trace.tables import Note, Trace


def read_trace(path: str | Path) -> Trace:
    """Read one trace file, or standard input for "-".

    Raises:
        TraceAnalyzerError: one line that says what is wrong with the file and what to do; see `read_kineto`.
    """
    return read_kineto(path)


def read_traces(paths: Sequence[str | Path]) -> list[Trace]:
    """Read several files, folders and recordings: of a folder every trace in it, sorted by name.

    Of a recording its windows are read, as many as memory should hold; see `trace.recording`.

    Raises:
        TraceAnalyzerError: as `read_trace`; also for no path at all, for a folder without traces, and for one with
            several recordings.
    """
    if not paths:
        return [read_trace(file) for file in trace_files(paths)]
    traces: list[Trace] = []
    for path in paths:
        manifest = _recording(path)
        if manifest is not None:
            traces += read_recording(manifest, read_trace)
            continue
        found = [read_trace(file) for file in trace_files([path])]
        if str(path) != "-" and (Path(path) / MANIFEST).is_file():
            unreadable = Note(notes.RECORDING_UNREADABLE, notes.SEVERITY[notes.RECORDING_UNREADABLE])
            found[0] = replace(found[0], quality=(unreadable, *found[0].quality))
        traces += found
    return traces


def _recording(path: str | Path) -> Manifest | None:
    return None if str(path) == "-" else find(Path(path), traces_in)
