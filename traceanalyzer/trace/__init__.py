"""Reads recordings into columnar traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceanalyzer.trace.folder import trace_files
from traceanalyzer.trace.kineto import read_kineto
from traceanalyzer.trace.tables import DeviceProperties, Metadata, Note, Source, Trace

__all__ = ["DeviceProperties", "Metadata", "Note", "Source", "Trace", "read_trace", "read_traces"]


def read_trace(path: str | Path) -> Trace:
    """Read one trace file, or standard input for "-".

    Raises:
        TraceAnalyzerError: one line that says what is wrong with the file and what to do; see `read_kineto`.
    """
    return read_kineto(path)


def read_traces(paths: Sequence[str | Path]) -> list[Trace]:
    """Read several files and folders: of a folder every trace in it, sorted by name.

    Raises:
        TraceAnalyzerError: as `read_trace`; also for no path at all and for a folder without traces.
    """
    return [read_trace(file) for file in trace_files(paths)]
