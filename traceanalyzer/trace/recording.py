"""Reads recordings: the folder that `traceanalyzer collect` leaves, with its manifest `recording.json`.

The manifest is somebody else's text. It names files, and only plain files that lie in the folder itself are opened;
what it says of them beyond that is checked against the files, and every difference is noted. A folder of recordings
stands for the only one in it.

Which windows are read: of each rank the process that recorded most steps; of a run that ended, the windows from the
first on; of a service that was sampled, the last ones. `MOST_EVENTS` bounds how much, so that a long run's recording
takes no more memory than one large trace. What could be wrong: a window that was moved into the folder by hand, and is
not in the manifest, is not read (it can be given by its name).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.trace import notes
from traceanalyzer.trace.refuse import printable
from traceanalyzer.trace.tables import Recording, Trace

MANIFEST = "recording.json"
KIND = "traceanalyzer-recording"
SCHEMA = 1
MOST_EVENTS = 2_000_000
"""Events after which no further window is opened: their analysis takes about 1.5 GB of memory and half a minute."""
MOST_WINDOWS = 1000
"""No more windows are read, however small."""

_LARGEST_MANIFEST = 64 << 20
_MOST_WINDOWS = 200_000
_MOST_FOLDERS = 10_000
_NAMED = 5
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\.json(?:\.gz|\.zst)?")
_WORD = re.compile(r"[A-Za-z0-9_ .-]{1,40}")
_MOST_RANK = (1 << 31) - 1

Read = Callable[[Path], Trace]


@dataclass(frozen=True)
class File:
    """One file of the manifest: one window of one process, with the window's number."""

    window: int
    name: str
    sha256: str | None
    rank: int | None
    pid: int | None
    steps: int


@dataclass(frozen=True)
class Manifest:
    """What a `recording.json` says, as far as it can be used."""

    folder: Path
    mode: str | None
    recorder: str | None
    finished: bool
    created: str
    reasons: tuple[str, ...]
    files: tuple[File, ...]
    ranks: frozenset[int] = frozenset()
    """The ranks that ran on this host: every host of a run has a recording of its own."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    steps_lost: int = 0
    steps_beyond_log: int = 0
    failures: int = 0
    refused: int = 0
    """Files that are named in a way no recorder names them."""


def find(path: Path, traces_in: Callable[[Path], Sequence[Path]]) -> Manifest | None:
    """The recording that a folder is or holds; None where it is a plain folder of traces, or no folder.

    Args:
        path: the folder.
        traces_in: lists the traces directly in a folder; where there are any, recordings below it are not looked for.

    Raises:
        InputError: it holds several recordings, or one of a newer schema.
    """
    if not path.is_dir():
        return None
    if (path / MANIFEST).is_file():
        return read_manifest(path)
    if traces_in(path):
        return None
    try:
        inside = sorted(entry for entry in path.iterdir() if (entry / MANIFEST).is_file())[:_MOST_FOLDERS]
    except OSError:
        return None
    found = [manifest for entry in inside if (manifest := read_manifest(entry)) is not None]
    if len(found) > 1:
        newest = sorted(found, key=lambda one: (one.created, one.folder.name), reverse=True)
        names = ", ".join(printable(one.folder.name) for one in newest[:_NAMED])
        more = f" and {len(newest) - _NAMED} more" if len(newest) > _NAMED else ""
        raise InputError(
            f"{printable(path.resolve().name)} holds {len(newest)} recordings, the newest first: {names}{more}",
            f"give one of them: traceanalyzer report {printable(str(newest[0].folder))}",
        )
    return found[0] if found else None


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none that can be read as one.

    Raises:
        InputError: it is of a newer schema.
    """
    try:
        with (folder / MANIFEST).open("rb") as stream:
            text = stream.read(_LARGEST_MANIFEST + 1)
        facts: Any = msgspec.json.decode(text) if len(text) <= _LARGEST_MANIFEST else None
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        return None
    schema = _count(facts.get("schema"))
    if schema is None or schema > SCHEMA:
        raise InputError(
            f"{printable(folder.resolve().name)} was recorded by a newer version", "update traceanalyzer to read it"
        )
    return _manifest(folder, facts)


def _manifest(folder: Path, facts: Mapping[str, Any]) -> Manifest:
    windows = [window for window in _dicts(facts.get("windows"))[:_MOST_WINDOWS] if _dicts(window.get("files"))]
    entries = [(place, window, entry) for place, window in enumerate(windows) for entry in _dicts(window.get("files"))]
    files = [file for place, window, entry in entries if (file := _file(place, window, entry)) is not None]
    lost = _counts(facts.get("lost"))
    steps_lost, steps_beyond_log = (lost.pop(f"steps_{what}", 0) for what in ("overwritten", "beyond_log"))
    ranks = [process.get("rank") for process in _dicts(facts.get("processes"))]
    for window in windows:
        lacking = window.get("ranks_missing")
        ranks += lacking if isinstance(lacking, list) else []
    created = facts.get("created_at")
    return Manifest(
        folder=folder,
        mode=_word(facts.get("mode")),
        recorder=_word(facts.get("recorder")),
        finished=facts.get("finished_at") is not None,
        created=str(created)[:40] if isinstance(created, str | int | float) else "",
        reasons=tuple(dict.fromkeys(word for window in windows if (word := _word(window.get("reason"))))),
        files=tuple(files),
        ranks=frozenset(rank for one in ranks if (rank := _count(one, _MOST_RANK)) is not None),
        dropped={**lost, **_counts(facts.get("dropped"))},
        steps_lost=steps_lost,
        steps_beyond_log=steps_beyond_log,
        failures=len(_dicts(facts.get("failures"))) + sum(map(_fails_untold, _dicts(facts.get("processes")))),
        refused=len(entries) - len(files),
    )


def _counts(value: object) -> dict[str, int]:
    """What was counted under names, without what did not occur."""
    items = value.items() if isinstance(value, dict) else ()
    return {word: count for key, found in items if (word := _word(key)) and (count := _count(found))}


def _fails_untold(process: Mapping[str, Any]) -> bool:
    """Whether something failed in a process that could not say what."""
    return bool(_count(process.get("failures_total"))) and not _dicts(process.get("failures"))


def _file(place: int, window: Mapping[str, Any], entry: Mapping[str, Any]) -> File | None:
    """One file of the manifest; None where its name is none that a recorder gives."""
    name, sha = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    number = _count(window.get("number"))
    return File(
        window=place if number is None else number,
        name=name,
        sha256=sha if isinstance(sha, str) else None,
        rank=_count(entry.get("rank"), _MOST_RANK),
        pid=_count(entry.get("pid")),
        steps=_count(entry.get("steps")) or 0,
    )


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: object, most: int = 2**63) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most else None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def read_recording(manifest: Manifest, read: Read, most_events: int = MOST_EVENTS) -> list[Trace]:
    """The windows of a recording, one trace per file, each with what the manifest says of the whole.

    Args:
        manifest: of the recording.
        read: reads one trace.
        most_events: after so many no further window is read; the first one always is.

    Raises:
        TraceAnalyzerError: it holds no window that could be read, and says why. While there is one, others that cannot
            be read are counted.
    """
    files, others = _of_main_processes(manifest.files)
    there = [file for file in files if _is_plain(manifest.folder / file.name)]
    if not there:
        name = printable(manifest.folder.resolve().name)
        if manifest.files:
            raise InputError(f"the recording {name} names {len(manifest.files)} traces, none of which is there")
        raise InputError(
            f"the recording {name} holds no window",
            "see what `traceanalyzer collect` said, or check the setup with `traceanalyzer collect --check`",
        )
    by_window: dict[int, list[File]] = {}
    for file in there:
        by_window.setdefault(file.window, []).append(file)
    traces, tried, changed = _read_windows(by_window, read, manifest, most_events)
    windows_read = [number for number in tried if by_window[number]]
    missing, lacking = _ranks_missing(manifest, by_window, windows_read)
    facts = Recording(
        mode=manifest.mode,
        recorder=manifest.recorder,
        reasons=manifest.reasons,
        windows=len({file.window for file in files}),
        windows_read=len(windows_read),
        ranks_missing=missing,
        dropped=manifest.dropped,
    )
    book = notes.NoteBook()
    book.add(notes.WINDOWS_LEFT_OUT, len(by_window) - len(tried), f"{len(windows_read)} of {len(by_window)}")
    book.add(notes.RECORDING_FILES_UNREADABLE, len(there) - sum(map(len, by_window.values())))
    book.add(notes.WINDOWS_WITHOUT_RANKS, lacking, ", ".join(map(str, missing[:16])))
    _note_losses(book, manifest, changed, others, len(files) - len(there))
    found = book.notes()
    return [
        replace(trace, recording=facts, quality=(*(found if place == 0 else ()), *trace.quality))
        for place, trace in enumerate(traces)
    ]


def _read_windows(
    by_window: dict[int, list[File]], read: Read, manifest: Manifest, most_events: int
) -> tuple[list[Trace], list[int], int]:
    """The traces, the windows that were tried, and how many files are not what was recorded.

    Takes files that cannot be read out of `by_window`. Raises what was wrong with the first where all are such.
    """
    traces: list[Trace] = []
    tried: list[int] = []
    events = changed = 0
    unreadable: TraceAnalyzerError | None = None
    for number in sorted(by_window, reverse=manifest.mode == "sample"):
        if traces and (events >= most_events or len(tried) >= MOST_WINDOWS):
            break
        files, by_window[number] = by_window[number], []
        for file in files:
            try:
                trace = read(manifest.folder / file.name)
            except TraceAnalyzerError as error:
                unreadable = unreadable or error
                continue
            by_window[number].append(file)
            events += trace.source.events
            changed += file.sha256 is not None and file.sha256 != trace.source.sha256
            traces.append(_with_rank(trace, file))
        tried.append(number)
    if unreadable is not None and not traces:
        raise unreadable
    return traces, tried, changed


def _is_plain(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False


def _with_rank(trace: Trace, file: File) -> Trace:
    """The trace with the rank that the manifest states, where the file itself does not say it."""
    if trace.metadata.rank is not None or file.rank is None:
        return trace
    return replace(trace, metadata=replace(trace.metadata, rank=file.rank))


def _of_main_processes(files: Sequence[File]) -> tuple[list[File], int]:
    """The files of the process with most steps of each rank, and how many files of others there are."""
    steps: Counter[tuple[int | None, int | None]] = Counter()
    for file in files:
        steps[file.rank, file.pid] += file.steps
    main: dict[int | None, int | None] = {}
    for (rank, pid), _ in steps.most_common():
        main.setdefault(rank, pid)
    if len(main) > 1:  # a process of no rank beside those that have one
        main.pop(None, None)
    own = [file for file in files if file.rank in main and main[file.rank] == file.pid]
    return own, len(files) - len(own)


def _ranks_missing(
    manifest: Manifest, by_window: Mapping[int, Sequence[File]], windows: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """The ranks that some window lacks, and how many windows lack one.

    A run that is recorded from its first step on lets each process count its own windows, so that only ranks without
    any window are missing there.
    """
    there = {file.rank for files in by_window.values() for file in files}
    known = {rank for rank in there if rank is not None}
    if known:
        known |= manifest.ranks
    if manifest.mode != "sample":
        missing = known - there
        return tuple(sorted(missing)), 0
    lacks = [known - {file.rank for file in by_window[number]} for number in windows]
    return tuple(sorted(set().union(*lacks))), sum(bool(lack) for lack in lacks)


def _note_losses(book: notes.NoteBook, manifest: Manifest, changed: int, others: int, missing: int) -> None:
    """What the manifest and its files say about what is not there."""
    book.add(notes.RECORDING_FILES_MISSING, missing + manifest.refused)
    book.add(notes.RECORDING_FILES_CHANGED, changed)
    book.add(notes.RECORDING_UNFINISHED, int(not manifest.finished))
    book.add(notes.OTHER_PROCESSES, others)
    dropped = sorted(manifest.dropped.items())[:8]
    book.add(
        notes.RECORDING_DROPPED,
        sum(manifest.dropped.values()),
        ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in dropped),
    )
    book.add(notes.RECORDING_FAILURES, manifest.failures)
    book.add(notes.RECORDING_STEPS_LOST, manifest.steps_lost)
    book.add(notes.RECORDING_STEPLOG_SHORT, manifest.steps_beyond_log)
