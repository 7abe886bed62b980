"""Runs `collect` around a command and reads what it left: the manifest, and the labels in the traces themselves."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("generation.py")
INSTALLED = (sys.executable, "-m", "traceanalyzer", "collect")
TIMEOUT_S = 120.0
_LABEL = re.compile(r"ta\.step\[(\w+) (.*)\]")


def until(holds: Callable[[], object]) -> None:
    """Wait for a condition, as long as a loaded machine may need."""
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def waits_for(file: str, then: str) -> str:
    """Shell code that waits for a file in its folder, at most as long as a test may take."""
    return f"for i in $(seq {TIMEOUT_S * 10:.0f}); do [ -e {file} ] && break; sleep 0.1; done; {then}"


def told(process: subprocess.Popen[str], word: str) -> str:
    """What the collector says until a word comes in it; all there is if it never does."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            break
    return said


def environment() -> dict[str, str]:
    """As a user's: nothing of a test run, and few threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEANALYZER", "KINETO"))}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Trace:
    """One finished file: its entry in the manifest, and its content."""

    entry: dict[str, Any]
    content: dict[str, Any]

    def labels(self) -> list[tuple[str, dict[str, int]]]:
        """Phase and numbers of each step's label, in time."""
        events = [e for e in self.content["traceEvents"] if e.get("cat") == "user_annotation"]
        found = [_LABEL.fullmatch(e["name"]) for e in sorted(events, key=lambda e: e["ts"])]
        return [
            (match[1], {key: int(value) for key, value in (part.split("=") for part in match[2].split())})
            for match in found
            if match
        ]


@dataclass(frozen=True)
class Recorded:
    """What one run left."""

    folder: Path
    manifest: dict[str, Any]
    traces: list[Trace]

    def phases(self) -> Counter[str]:
        """Steps by phase over all files, counted in the traces."""
        return Counter(phase for trace in self.traces for phase, _ in trace.labels())


def read(output: Path) -> Recorded:
    """The only recording under `output`, with nothing half-written beside it."""
    (manifest_path,) = output.glob("*/recording.json")
    folder = manifest_path.parent
    manifest = json.loads(manifest_path.read_text())
    entries = {file["name"]: file for window in manifest["windows"] for file in window["files"]}
    present = {path.name for path in folder.iterdir()}
    others = {"recording.json", *manifest["steplogs"]}
    assert present == {*entries, *others}
    traces = [
        Trace(entry, json.loads(gzip.decompress((folder / name).read_bytes())))
        for name, entry in sorted(entries.items())
    ]
    for trace in traces:
        labels, cut = trace.labels(), trace.content["traceanalyzer"]["window"]["unfinished_steps"]
        assert trace.entry["phases"] == Counter(phase for phase, _ in labels[: len(labels) - cut])
    return Recorded(folder, manifest, traces)


def words(collect: Sequence[str], output: Path, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """The whole command line."""
    return [*collect, "-o", str(output), "--counters", "off", *options, "--", *command]


def run(
    command: Sequence[str], output: Path, *options: str, collect: Sequence[str] = INSTALLED, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run `collect` to its end."""
    how = {"env": environment(), "stdin": subprocess.DEVNULL, **how}
    line = words(collect, output, options, command)
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **how)


@contextmanager
def started(
    command: Sequence[str], output: Path, *options: str, collect: Sequence[str] = INSTALLED, **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start `collect`; at the end whatever is left of it is gone."""
    how = {"env": environment(), "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **how}
    line = words(collect, output, options, command)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True, **how)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate(timeout=TIMEOUT_S)
