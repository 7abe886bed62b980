"""Finds the captures of a run's graphs in the folder of its trace.

Serving engines that are profiled while they capture leave a trace of its own; its name says "capture" (vLLM and SGLang
label what they capture `capture_<tokens>_<mode>`, and who saves it names it so). Only a few small files by such names
are read, only for a trace that replays graphs, and one that cannot be read counts as none. What could be wrong: a
capture of another model with the same kernels; whoever matches it checks sizes and order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.trace.folder import is_trace
from traceanalyzer.trace.kineto import read_kineto
from traceanalyzer.trace.notes import NoteBook
from traceanalyzer.trace.source import SourceStream
from traceanalyzer.trace.tables import Trace

MOST = 3
"""No more files are read."""
LARGEST = 8 << 20
"""Larger files, packed as they are, would keep a report waiting for what may be of no use."""
LARGEST_PLAIN = 64 << 20
"""Unpacked."""
_MOST_OPENED = 30
"""No more files are looked into, whether they are traces or not."""

_CAPTURES = re.compile(r"(?i)capture")
_PLAIN, _PACKED = (".json",), (".json.gz", ".json.zst", ".json.zstd")
_GRAPH_LAUNCH = "GraphLaunch"


def captures_beside(paths: Sequence[str | Path], traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """The traces that may be captures of the graphs which the only file given replays, smallest first.

    Args:
        paths: what was given.
        traces: what was read from it.
    """
    if len(paths) != 1 or str(paths[0]) == "-" or not any(map(_replays, traces)):
        return ()
    given = Path(paths[0])
    found: list[Trace] = []
    read = 0
    for candidate in _candidates(given):
        if read == MOST:
            break
        try:
            if not is_trace(candidate):
                continue
            read += 1
            if not _is_small(candidate):
                continue
            trace = read_kineto(candidate)
        except (TraceAnalyzerError, OSError):
            continue
        copies = any(trace.source.sha256 == one.source.sha256 for one in traces)
        if not copies and any(_same_devices(trace, one) for one in traces):
            found.append(trace)
    return tuple(found)


def _candidates(given: Path) -> list[Path]:
    """Files beside a file that are named like captures, the smallest first."""
    try:
        entries = sorted(given.parent.iterdir()) if given.is_file() else []
    except OSError:
        return []
    sized = []
    for entry in entries:
        packed = entry.name.endswith(_PACKED)
        if not _CAPTURES.search(entry.name) or not (packed or entry.name.endswith(_PLAIN)):
            continue
        try:
            size = entry.stat().st_size
            if entry.is_file() and size <= (LARGEST if packed else LARGEST_PLAIN) and not entry.samefile(given):
                sized.append((size, entry))
        except OSError:  # a link to nowhere, or a file that has gone
            continue
    return [entry for _, entry in sorted(sized)[:_MOST_OPENED]]


def _is_small(path: Path) -> bool:
    """Whether a file is no larger than it may be when unpacked; what a few bytes unpack to may fill the memory.

    Raises:
        TraceAnalyzerError: it cannot be read.
    """
    stream, size = SourceStream(path, NoteBook()), 0
    try:
        for chunk in stream:
            size += len(chunk)
            if size > LARGEST_PLAIN:
                return False
    finally:
        stream.close()
    return True


def _replays(trace: Trace) -> bool:
    codes = np.unique(trace.launches["name"].to_numpy()).tolist()
    return any(_GRAPH_LAUNCH in trace.text(code) for code in codes)


def _same_devices(trace: Trace, other: Trace) -> bool:
    """Whether two traces can be of one machine: a device of the same kind; what does not say is not ruled out."""
    kinds = [
        {(one.name, one.compute_major, one.compute_minor, one.num_sms) for one in each.metadata.devices}
        for each in (trace, other)
    ]
    return not all(kinds) or bool(kinds[0] & kinds[1])
