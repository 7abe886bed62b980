"""The manifest of a recording, RECORDING/recording.json: which windows there are, and what was dropped and why.

It is always replaced as a whole, so that a reader sees one state or the next. What could be wrong: a file can be gone
that the manifest still lists, when another supervisor made room on the same disk; its owner notes that within a minute.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any, Sequence

from . import block as blocks
from .block import About
from .facts import RawWindow, Window
from .finish import Finished
from .scan import Scan

NAME = "recording.json"
KIND = "traceanalyzer-recording"
SCHEMA = 1
_REST = 20.0
"""Least time between two writes, as a multiple of what one took: a long manifest is written less often."""
_LONGEST_REST_S = 5.0
_MOST_FAILED = 100
_NOT_KEPT = {
    "behind": "too many windows were waiting to be written",
    "damaged": "its trace is damaged",
    "disk_error": "the disk could not be written",
    "disk_full": "the disk is full",
    "no_file": "its file was not there any more",
    "no_memory": "there was no memory to finish its file",
    "unreadable": "its file could not be read",
}


class Manifest:
    """What a recording.json says. Not safe for two threads.

    facts: its content; whoever changes it sets `changed`.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        """Nothing is written yet."""
        self.path = path
        self.facts = facts
        self.changed = True
        self._not_before = 0.0

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """The manifest at `path`, None where there is none of ours."""
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(facts, dict) or facts.get("kind") != KIND or not isinstance(facts.get("windows"), list):
            return None
        found = cls(path, facts)
        found.changed = False
        return found

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Count what was recorded and is not kept."""
        dropped = self.facts.setdefault("dropped", {})
        dropped[reason] = dropped.get(reason, 0) + count
        self.changed = True

    def lose(self, window: Window, pid: int, reason: str, detail: str = "") -> None:
        """Count a process' file that was recorded and is not kept, and say so in its window."""
        self.count_dropped(reason)
        window.lost[pid] = _NOT_KEPT[reason] + (f": {detail}" if detail else "")

    def add_window(self, window: dict[str, Any]) -> None:
        """List one window with its files; of those without, the last ones with why."""
        self.facts["windows" if window["files"] else "failed"].append(window)
        del self.facts["failed"][:-_MOST_FAILED]
        self.changed = True

    def drop_files(self, names: set[str], reason: str) -> int:
        """Take files off the list and count them; a window without files is no window. Returns how many there were."""
        dropped = 0
        kept = []
        for window in self.facts["windows"]:
            files = window.get("files", [])
            left = [file for file in files if file.get("name") not in names]
            dropped += len(files) - len(left)
            if len(left) == len(files):
                kept.append(window)
            elif left:
                kept.append({**window, "files": left})
        self.facts["windows"] = kept
        logs = self.facts.get("steplogs", [])
        self.facts["steplogs"] = [name for name in logs if name not in names]
        dropped += len(logs) - len(self.facts["steplogs"])
        if self.facts.get("counters") in names:
            self.facts["counters"] = None
            dropped += 1
        if dropped:
            self.count_dropped(reason, dropped)
        return dropped

    def names(self) -> set[str]:
        """The files of all windows."""
        return {file["name"] for window in self.facts["windows"] for file in window["files"]}

    def write(self, now: bool = False) -> None:
        """Replace the file where something changed and it is time, or `now`. Raises `OSError`; the old file stays."""
        began = time.monotonic()
        if not self.changed or (began < self._not_before and not now):
            return
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                json.dump(self.facts, stream, separators=(",", ":"))
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self.changed = False
        ended = time.monotonic()
        self._not_before = ended + min(_LONGEST_REST_S, _REST * (ended - began))


def timestamp(epoch_ns: int) -> str:
    """UTC to the millisecond, in a form that a file name can hold: 20261130T045537.123Z."""
    moment = datetime.datetime.fromtimestamp(epoch_ns // 10**9, datetime.timezone.utc)
    return f"{moment:%Y%m%dT%H%M%S}.{epoch_ns // 10**6 % 1000:03d}Z"


def first_facts(created_ns: int, tool_version: str, host_hash: str, mode: str, recorder: str) -> dict[str, Any]:
    """The manifest of a recording that begins."""
    return {
        "schema": SCHEMA, "kind": KIND, "tool_version": tool_version, "created_at": timestamp(created_ns),
        "finished_at": None, "host_hash": host_hash, "mode": mode, "recorder": recorder, "windows": [],
        "failed": [], "processes": [], "steplogs": [], "counters": None, "dropped": {}, "lost": {}, "failures": [],
        "exit_code": None, "signal": None,
    }  # fmt: skip


def window_entry(window: Window, missing: Sequence[int | None], files: list[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of one window; `missing` are the ranks without a file, None for one that is unknown.

    Where a file is lacking, `why` says why: as known when the window ended, or as each process' file fared since.
    """
    entry: dict[str, Any] = {
        "number": window.number, "reason": window.reason, "requested_ns": window.requested_ns, "stable": window.stable,
        "weight_s": window.weight_s, "tries": window.tries or None, "ranks_missing": list(missing), "files": files,
    }  # fmt: skip
    if window.failed is not None:
        entry["why"] = window.failed.message
    elif window.lost or not files:
        entry["why"] = "; ".join(sorted(set(window.lost.values()))) or "its file was not kept"
    return entry


def free_name(folder: Path, host_hash: str, pid: int, rank: int, opened_ns: int) -> str:
    """A finished file's name: no other file of the folder has it."""
    while True:
        name = f"traceanalyzer-{host_hash}-{pid}-rank{rank}-{timestamp(opened_ns)}.pt.trace.json.gz"
        if not (folder / name).exists():
            return name
        opened_ns += 10**6


def file_entry(name: str, raw: RawWindow, about: About, scan: Scan, done: Finished) -> dict[str, Any]:
    """What the manifest says of one finished file."""
    return {
        "name": name, "sha256": done.sha256, "bytes": done.bytes, "rank": blocks.rank(about.process, scan),
        "pid": raw.pid, "steps": scan.steps, "phases": scan.phases, "events": scan.events,
        "opened_ns": blocks.opened_ns(raw, scan), "closed_ns": blocks.closed_ns(raw, scan),
        "closed_by": raw.closed_by, "recorder": raw.recorder, "cold_start": blocks.cold_start(scan),
    }  # fmt: skip
