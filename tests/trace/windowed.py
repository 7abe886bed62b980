"""Recordings made by hand: a trace cut into windows, as a recorder would have left them, and the manifest beside them.

A window holds what its steps launched: each has a clock, correlations and external ids of its own, as separate
sessions of the profiler have, and lies `GAP_NS` after the end of the one before.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GAP_NS = 1_000_000_000
STARTED_NS = 1_790_000_000_000_000_000
HOST = "0123456789ab"
_LABEL = re.compile(r"ta\.step\[")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def block(number: int, rank: int | None = None, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """The recorder's block of window `number`; sections are added to it."""
    window = {"number": number, "recorder": "python", "reason": "full", "closed_by": "steps", "rank": rank}
    base: dict[str, Any] = {"schema": 1, "window": window}
    for name, facts in sections.items():
        base[name] = {**base.get(name, {}), **facts}
    return base


def cut(document: Mapping[str, Any], at: Sequence[int]) -> list[dict[str, Any]]:
    """Windows of one trace: the steps before each index of `at`, and those from the last one on.

    Args:
        document: the trace as JSON; every step of it is labelled, and its host runs the steps one after the other.
        at: steps at which a new window begins.
    """
    events = document["traceEvents"]
    labels = [event for event in events if event.get("cat") == "user_annotation" and _LABEL.match(event["name"])]
    starts = sorted(float(event["ts"]) for event in labels)
    edges = [starts[index] for index in at]
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    labelled = {event["args"]["External id"]: float(event["ts"]) for event in labels if "External id" in event["args"]}

    def window_of(event: Mapping[str, Any]) -> int:
        category, args = event.get("cat"), event.get("args", {})
        time = float(event["ts"])
        if category in _GPU:
            time = launched[args["correlation"]]
        elif category == "gpu_user_annotation":
            time = labelled[args["External id"]]
        return sum(edge <= time for edge in edges)

    windows: list[dict[str, Any]] = []
    for number in range(len(at) + 1):
        own = [event for event in events if event.get("ph") == "X" and "ts" in event and window_of(event) == number]
        own = [event for event in own if event.get("cat") != "Trace"]
        first = min(float(event["ts"]) for event in own)
        length_us = max(float(event["ts"]) + float(event["dur"]) for event in own) - first
        placed = [_renumbered(event, first) for event in own]
        begin = windows[-1]["_end"] + GAP_NS if windows else STARTED_NS
        head = {key: value for key, value in document.items() if key not in ("traceEvents", "traceanalyzer")}
        windows.append(
            {**head, "baseTimeNanoseconds": begin, "traceEvents": placed, "_end": begin + int(length_us * 1000) + 1}
        )
    for window in windows:
        del window["_end"]
    return windows


def _renumbered(event: Mapping[str, Any], first_us: float) -> dict[str, Any]:
    """An event with times from zero; ids as small as a new session's, the same in every window."""
    args = dict(event.get("args", {}))
    return {**event, "ts": round(float(event["ts"]) - first_us, 3), "args": args}


def with_small_ids(window: dict[str, Any]) -> dict[str, Any]:
    """The window with its correlations and external ids counted from 1, so that those of all windows collide."""
    for name in ("correlation", "External id"):
        ids = sorted({event["args"][name] for event in window["traceEvents"] if event.get("args", {}).get(name, 0) > 0})
        small = {old: new for new, old in enumerate(ids, start=1)}
        for event in window["traceEvents"]:
            if event.get("args", {}).get(name, 0) > 0:
                event["args"][name] = small[event["args"][name]]
    return window


def write(folder: Path, window: Mapping[str, Any], collector: Mapping[str, Any], rank: int, pid: int) -> Path:
    """One finished window under the name that the collector gives it."""
    number = collector["window"]["number"]
    path = folder / f"traceanalyzer-{HOST}-{pid}-rank{rank}-20261130T0455{number:02d}.123Z.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**window, "traceanalyzer": collector}).encode(), 1))
    return path


def manifest(folder: Path, files: Sequence[tuple[Path, int, int | None, int]], **facts: Any) -> Path:
    """`recording.json` beside the files: (path, window, rank, pid) each."""
    windows: dict[int, list[dict[str, Any]]] = {}
    for path, number, rank, pid in files:
        data = path.read_bytes()
        entry = {
            "name": path.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "rank": rank, "pid": pid,
            "steps": 4, "phases": {}, "opened_ns": 1, "closed_ns": 2, "closed_by": "steps", "recorder": "python",
            "cold_start": number == 1,
        }  # fmt: skip
        windows.setdefault(number, []).append(entry)
    document = {
        "schema": 1, "kind": "traceanalyzer-recording", "tool_version": "0.1.0", "created_at": "2026-11-30T04:55:37Z",
        "finished_at": "2026-11-30T05:55:37Z", "host_hash": HOST, "mode": "full", "recorder": "python",
        "windows": [
            {"number": number, "reason": "full", "requested_ns": 1, "stable": None, "weight_s": None,
             "ranks_missing": [], "files": entries}
            for number, entries in sorted(windows.items())
        ],
        "processes": [], "steplogs": [], "counters": None, "dropped": {}, "failures": [], "exit_code": 0,
        "signal": None,
    }  # fmt: skip
    path = folder / "recording.json"
    path.write_text(json.dumps({**document, **facts}), encoding="utf-8")
    return path


def recording(
    folder: Path, windows: Sequence[dict[str, Any]], rank: int | None = None, pid: int = 4001, **facts: Any
) -> Path:
    """A recording of one process with the given windows; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, window in enumerate(windows, start=1):
        path = write(folder, with_small_ids(window), block(number, rank), rank or 0, pid)
        files.append((path, number, rank, pid))
    manifest(folder, files, **facts)
    return folder
