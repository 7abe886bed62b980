"""What is lost is told: in the manifest, in the blocks, and at the end of the run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collect import running
from tests.collect.rings import MS, Ring, S, hello, steady, step
from traceanalyzer.collect import processes as observed
from traceanalyzer.collect import steplog
from traceanalyzer.collect.inside import layout
from traceanalyzer.collect.losses import Losses
from traceanalyzer.collect.processes import Process, Processes

START = 1_790_000_000 * S


class Bench:
    """One process; its ring holds 128 steps, of which 64 are safe to read."""

    def __init__(self, folder: Path) -> None:
        self.ring: Ring = hello(folder, os.getpid())
        self.processes = Processes(folder)
        self.processes.refresh()

    @property
    def process(self) -> Process:
        return [*self.processes.ended, *self.processes.live][0]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(layout, "RING_CAPACITY", 128)
    monkeypatch.setattr(layout, "RING_SIZE", layout.PAGE + 128 * layout.RECORD.size)
    found = Bench(tmp_path)
    yield found
    found.processes.close()
    found.ring.close()


def test_steps_that_were_overwritten_or_had_no_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Losses(full=False)
    losses.see(bench.process, 0)
    assert losses.counts(0) == {}
    bench.ring.write(*steady(100, START, MS))
    bench.processes.refresh()
    losses.see(bench.process, 0)
    assert losses.counts(0) == {"steps_overwritten": 36}
    monkeypatch.setattr(steplog, "MOST_ROWS", 70)
    bench.ring.write(*steady(10, START + S, MS))
    bench.processes.refresh()
    losses.see(bench.process, 0)
    rows = len(bench.process.log)
    assert losses.counts(0) == {"steps_beyond_log": 74 - rows, "steps_overwritten": 36} and rows <= 70


def test_windows_without_a_file_are_counted_when_their_process_has_ended(bench: Bench) -> None:
    """Three windows were ended, one file came; and one was abandoned, which its process says."""
    full, sample = Losses(full=True), Losses(full=False)
    bench.ring.word(layout.RING_WINDOWS_DONE, 3)
    full.see(bench.process, 1)
    assert full.counts(0) == {}, "the files may not have been looked at"
    bench.process.facts["recording"] = {"lost": "user_profiler"}
    bench.processes.close()
    for losses in (full, sample):
        losses.see(bench.process, 1)
    assert full.counts(0) == {"windows_unwritten": 3}
    assert sample.counts(0) == {}, "there they are missing ranks"
    full.see(bench.process, 5)
    assert full.counts(0) == {}, "it replaced itself and counts anew"


def test_what_stands_behind_a_record_that_never_comes_is_read_at_the_end(bench: Bench) -> None:
    bench.ring.write(step(START))
    bench.ring.slot(2, step(START + 2 * MS))
    bench.ring.slot(4, step(START + 4 * MS))
    bench.ring.tell(5)
    bench.processes.refresh()
    bench.processes.close()
    assert len(bench.process.log) == 3 and bench.process.ring.lost == 2


def test_the_failures_of_a_process_that_has_ended_are_known(bench: Bench) -> None:
    bench.ring.word(layout.RING_FAILURES, 7)
    assert bench.process.failures == 7
    bench.processes.close()
    assert bench.process.failures == 7


def test_step_logs_that_are_let_go_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_MOST_ENDED", 1)
    first = 2**22 + 5  # above any process number
    rings = [hello(tmp_path, first + i) for i in range(4)]
    for ring in rings[:2]:
        ring.write(step(START))
    found = Processes(tmp_path)
    found.refresh()
    found.live.sort(key=lambda process: process.pid)
    found.close()
    assert found.let_go == 2, "of the third nothing is lost"
    assert Losses(full=True).counts(found.let_go) == {"step_logs": 2}
    for ring in rings:
        ring.close()


COMMAND = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.collect import rings
from traceanalyzer.collect.inside import layout
ring = rings.hello(Path(os.environ["TRACEANALYZER_RUN"]), os.getpid())
ring.write(*rings.steady(20, time.time_ns() - rings.S))
ring.word(layout.RING_WINDOWS_DONE, 2)
ring.word(layout.RING_FAILURES, 3)
time.sleep(1.0)
"""


def test_the_run_s_end_and_its_manifest_tell(tmp_path: Path) -> None:
    (tmp_path / "lossy.py").write_text(COMMAND.format(root=str(running.ROOT)), encoding="utf-8")
    found = running.run([sys.executable, str(tmp_path / "lossy.py")], tmp_path / "out")
    (path,) = (tmp_path / "out").glob("*/recording.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest["lost"] == {"windows_unwritten": 2}
    assert [process["failures_total"] for process in manifest["processes"]] == [3]
    assert "lost: 2 windows_unwritten" in found.stderr
