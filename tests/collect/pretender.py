"""A command without torch that behaves like a recorded process: it has a window open and answers flushes as told.

    pretender.py SECONDS RAW

It says `ready` once the supervisor knows it (the manifest lists it then), keeps its window open until SECONDS after it
was asked to close it (negative: for ever), then puts RAW into place as the window's trace and ends with code 0, unless
something else ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.collect import rings
from traceanalyzer.collect.inside import layout


def flushes(runtime: Path) -> int:
    data = (runtime / "control").read_bytes()
    return int.from_bytes(data[layout.FLUSH_ID : layout.FLUSH_ID + 8], "little")


def is_known(recording: Path, pid: int) -> bool:
    manifest = json.loads((recording / "recording.json").read_text())
    return pid in [process["pid"] for process in manifest["processes"]]


def main(seconds: float, trace: Path) -> None:
    runtime = Path(os.environ["TRACEANALYZER_RUN"])
    raw = Path(json.loads((runtime / "config.json").read_text())["raw"])
    pid = os.getpid()
    ring = rings.hello(runtime, pid)
    ring.write(*rings.steady(20, time.time_ns() - rings.S))
    ring.word(layout.RING_WINDOW, 1)
    while not is_known(raw.parent, pid):
        time.sleep(0.02)
    sys.stdout.write("ready\n")
    sys.stdout.close()
    while not flushes(runtime):
        time.sleep(0.02)
    if seconds < 0:
        time.sleep(300)
    time.sleep(abs(seconds))
    shutil.copy(trace, raw / f"{pid}-1.json")
    now = time.time_ns()
    facts = {
        "window": 1, "pid": pid, "recorder": "python", "opened_ns": now - rings.S, "closed_ns": now,
        "closed_by": "flush",
    }  # fmt: skip
    (raw / "meta").write_text(json.dumps(facts))
    (raw / "meta").rename(raw / f"{pid}-1.meta.json")
    ring.word(layout.RING_WINDOW, 0)
    time.sleep(0.2)


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
