"""Reading a large file takes memory for its columns and one block, and keeps up a rate; in a process of its own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.conftest import require
from tests.trace.made import document, events

_HIGH_WATER = """
import json, re, sys, time
from pathlib import Path
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.trace import read_trace
def high_water():  # of this program alone; getrusage would count the one that started it
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024
"""
MEASURE = f"""{_HIGH_WATER}
before = high_water()
begin = time.process_time()
trace = read_trace(sys.argv[1])
seconds = time.process_time() - begin
peak = high_water()
kept = sum(int(getattr(trace, name).memory_usage(index=False).sum())
           for name in ("kernels", "launches", "ops", "annotations", "syncs", "counters"))
print(json.dumps([before, peak, seconds, trace.source.events, kept]))
"""

BOMB = f"""{_HIGH_WATER}
before = high_water()
try:
    outcome = [note.code for note in read_trace(sys.argv[1]).quality if note.severity != "info"]
except TraceAnalyzerError as error:
    outcome = str(error)
print(json.dumps([high_water() - before, outcome]))
"""
KERNELS = b", ".join(
    b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": %d, "dur": 1}' % i for i in range(20)
)
FILLING = b" " * (1 << 20)


def packed_bomb(parts: tuple[bytes, bytes], filling: int, packing: str) -> bytes:
    """`filling` MiB of blanks between the two parts, compressed to next to nothing."""
    if packing == "gzip":
        return gzip.compress(parts[0]) + gzip.compress(FILLING, 9) * filling + gzip.compress(parts[1])
    packer = zstandard.ZstdCompressor().compressobj()
    body = [packer.compress(text) for text in (parts[0], *[FILLING] * filling, parts[1])]
    return b"".join(body) + packer.flush()


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ((b'{"zz": "', b'", "schemaVersion": 1, "traceEvents": [' + KERNELS + b"]}"), "is JSON without traceEvents"),
        ((b'{"schemaVersion": 1, "traceEvents": [' + KERNELS + b'], "zz": "', b'"}'), []),
        ((b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "', b'"}, ' + KERNELS + b"]}"),
         ["damaged_events"]),
        ((b'{"schemaVersion": 1, "traceEvents": [{"a": [{}, {"b": "', b'"}]}, ' + KERNELS + b"]}"),
         ["damaged_events"]),
    ],
    ids=["before the events", "after the events", "in an event", "in an event that holds a list"],
)  # fmt: skip
def test_a_small_file_that_expands_beyond_all_reason_takes_little_memory(
    tmp_path: Path, parts: tuple[bytes, bytes], outcome: object, packing: str
) -> None:
    require(Path("/proc/self/status").exists(), "memory is measured as Linux shows it")
    path = tmp_path / "small.json"
    path.write_bytes(packed_bomb(parts, 400, packing))
    assert path.stat().st_size < 600_000
    command = [sys.executable, "-c", BOMB, str(path)]
    taken, found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert taken < 300e6
    assert found == outcome or str(outcome) in found


def large(path: Path, megabytes: int) -> tuple[int, int]:
    """A file of that size, mostly stacks and arrows as real ones are; its bytes and events."""
    text = document(events(1, 400), "old kineto")
    head, rest = text.split(b'"traceEvents": [\n', 1)
    body, tail = rest.split(b"\n  ],\n", 1)
    stacks = b",\n".join(
        b'  {\n    "ph": "X", "cat": "python_function", "name": "model.py(%d): forward", "pid": 1, "tid": 1,\n'
        b'    "ts": 10000%d.5, "dur": 1.25,\n    "args": {\n      "Python parent id": 1, "Python id": %d, "Ev Idx": 3\n'
        b"    }\n  }" % (i % 300, i, i)
        for i in range(1200)
    )
    piece = body + b",\n" + stacks
    copies = megabytes * 10**6 // len(piece)
    with path.open("wb") as stream:
        stream.write(head + b'"traceEvents": [\n' + piece)
        for _ in range(copies - 1):
            stream.write(b",\n" + piece)
        stream.write(b"\n  ],\n" + tail)
    return path.stat().st_size, copies * 1600


def measured(path: Path) -> list[float]:
    command = [sys.executable, "-c", MEASURE, str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.soak
def test_memory_stays_bounded_by_the_columns(tmp_path: Path) -> None:
    require(Path("/proc/self/status").exists(), "memory is measured as Linux shows it")
    path = tmp_path / "large.json"
    size, count = large(path, 200)
    before, peak, seconds, found, kept = measured(path)
    assert found == count
    assert peak < 0.85 * size  # short events, so that the columns of each weigh most
    assert peak - before < 3 * kept + 40e6
    small = tmp_path / "small.json"
    large(small, 50)
    assert measured(small)[1] < peak
    assert size / seconds > 30e6, "bytes per second of processor time"
