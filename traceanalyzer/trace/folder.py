"""Finds the traces in folders.

A folder of recordings also holds logs, tables and configurations; only JSON files that show signs of a trace in their
first megabyte count. What could be wrong: a trace whose header is longer than that is overlooked when only its folder
is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.trace import notes
from traceanalyzer.trace.refuse import printable
from traceanalyzer.trace.source import SourceStream

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_HEAD = 1 << 20
_SIGN = re.compile(rb'"(?:traceEvents|deviceProperties|computeProperties)"\s*:|"ph"\s*:\s*"')


def trace_files(paths: Sequence[str | Path]) -> list[str | Path]:
    """The files to read, in the order given; a folder stands for the traces directly in it, sorted by name.

    Raises:
        InputError: no path, a path that does not exist, or a folder without traces.
    """
    if not paths:
        raise InputError("no trace given", "pass a trace file or a folder of traces")
    files: list[str | Path] = []
    for path in paths:
        if str(path) == "-" or not Path(path).is_dir():
            files.append(path)
            continue
        found = traces_in(Path(path))
        if not found:
            name = printable(Path(path).resolve().name)
            raise InputError(f"the folder {name} holds no traces", "pass a folder with .json or .json.gz traces")
        files += found
    return files


def traces_in(folder: Path) -> list[Path]:
    """The traces directly in a folder, sorted by name.

    Raises:
        InputError: it cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        name = printable(folder.resolve().name)
        raise InputError(f"the folder {name} cannot be read: {error.strerror}", "check its permissions") from error
    return [entry for entry in entries if entry.name.endswith(_SUFFIXES) and entry.is_file() and is_trace(entry)]


def is_trace(path: Path) -> bool:
    """Whether a file begins like a trace. An unreadable file counts, so that reading it says why."""
    try:
        source = SourceStream(path, notes.NoteBook())
    except TraceAnalyzerError as error:
        return isinstance(error.__cause__, OSError)
    try:
        head = b""
        for chunk in source:
            head += chunk
            if len(head) >= _HEAD:
                break
        return _SIGN.search(head) is not None
    finally:
        source.close()
