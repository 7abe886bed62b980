"""A generation whose sampling reads a value and sleeps, recorded by `collect`: the report names both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.collect.running import SCRIPT, run
from traceanalyzer import analyze, read_traces
from traceanalyzer.report.document import Report
from traceanalyzer.report.views.idle import sentences

CALLS, SLEEP_US = 24, 4_000
"""What `stalled.py` does: its sampling stalls once per new token."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    output = tmp_path_factory.mktemp("stalls")
    done = run([sys.executable, str(SCRIPT.with_name("stalled.py"))], output, "--with-stack")
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in output.iterdir() if path.is_dir())
    return analyze(read_traces([folder]))


def test_a_sleep_in_the_sampling_is_named_with_its_line(report: Report) -> None:
    asleep = [row for row in report.idle_causes if (row.frame or "").startswith("sleep in stalled.py(")]
    assert {row.phase for row in asleep} == {"prefill", "decode"}
    assert {row.op for row in asleep} == {"aten::item"}
    assert all((row.frame or "").endswith(": __call__") for row in asleep)
    assert sum(row.gaps for row in asleep) == CALLS
    assert sum(row.us for row in asleep) >= 0.95 * CALLS * SLEEP_US
    assert any("sleep in stalled.py(" in said for said in sentences(report, "decode"))


def test_reading_a_value_for_every_token_is_counted(report: Report) -> None:
    (decode,) = (one for one in report.launches if one.phase == "decode")
    reads = {read.op: read.per_step * decode.steps for read in decode.reads}
    assert reads["aten::item"] == pytest.approx(CALLS, abs=1)


def test_no_frame_tells_a_folder(report: Report) -> None:
    frames = [row.frame for row in report.idle_causes if row.frame]
    assert frames
    assert not [frame for frame in frames if "/" in frame.replace("torch/", "") or "\\" in frame]
    assert str(Path.home()) not in report.to_json()
