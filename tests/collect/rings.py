"""Writes rings as a recorded process would, byte for byte from the layout's own table, for the supervisor's tests."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from traceanalyzer.collect.inside import layout
from traceanalyzer.collect.ring import Step

DECODE, PREFILL, MIXED, DRAFT = (layout.PHASES.index(name) for name in ("decode", "prefill", "mixed", "draft"))
MS = 1_000_000
S = 1_000_000_000


def step(start_ns: int, duration_ns: int = 4 * MS, phase: int = DECODE, **fields: int) -> Step:
    """A step of one sequence, unless told otherwise."""
    given = {"tokens": 1, "sequences": 1, "context_sum": 100, "thread": 7, **fields}
    return Step(**{**dict.fromkeys(Step._fields, 0), **given, "start_ns": start_ns, "duration_ns": duration_ns,
                   "phase": phase})  # fmt: skip


def steady(count: int, start_ns: int, period_ns: int = 10 * MS, **fields: int) -> list[Step]:
    """Decode steps, one each period."""
    return [step(start_ns + i * period_ns, **fields) for i in range(count)]


class Ring:
    """The writing end of a ring."""

    def __init__(self, path: Path, pid: int = 1) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(self.fd, layout.PAGE + layout.RING_CAPACITY * layout.RECORD.size)
        self.written = 0
        self.word(layout.RING_PID, pid)
        self.word(layout.MAGIC, layout.RING_MAGIC)

    def word(self, offset: int, value: int) -> None:
        os.pwrite(self.fd, struct.pack("<Q", value), offset)

    def slot(self, index: int, found: Step) -> None:
        """Fill a slot alone, without telling."""
        fields = found._replace(number=index & 0xFFFF_FFFF)
        at = layout.PAGE + index % layout.RING_CAPACITY * layout.RECORD.size
        os.pwrite(self.fd, layout.RECORD.pack(*fields), at)

    def tell(self, count: int) -> None:
        self.written = count
        self.word(layout.RING_COUNT, count)

    def write(self, *steps: Step) -> None:
        for found in steps:
            self.slot(self.written, found)
            self.tell(self.written + 1)

    def close(self) -> None:
        os.close(self.fd)


def hello(runtime: Path, pid: int, **facts: Any) -> Ring:
    """A process that has said hello and has an empty ring."""
    ring = Ring(runtime / "rings" / f"{pid}.ring", pid)
    procs = runtime / "procs"
    procs.mkdir(exist_ok=True)
    written = procs / f"{pid}.part"  # moved into place, as processes do it: nobody reads half of it
    written.write_text(json.dumps({"pid": pid, "schema": 1, "torch": "2.13.0", **facts}))
    written.replace(procs / f"{pid}.json")
    return ring
