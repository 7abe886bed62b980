"""Windows of several ranks as a recording holds them: each rank's are one trace, and ranks are compared over all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.ranks import made
from tests.trace import windowed
from traceanalyzer import read_traces
from traceanalyzer.analysis.pipeline import Analysis, analyze
from traceanalyzer.analysis.ranks import Ranks

APART = 8_000_000
"""How much later the second rank's clock says each window was, in ns."""


def recorded(files: list[Path], folder: Path, cuts: tuple[tuple[int, ...], ...], hosts: tuple[str, ...]) -> Path:
    """A recording of two ranks, each cut into windows before the steps of its own."""
    folder.mkdir()
    entries = []
    for rank, (file, cut, host) in enumerate(zip(files, cuts, hosts, strict=True)):
        document = json.loads(file.read_text(encoding="utf-8"))
        for number, window in enumerate(windowed.cut(document, cut), start=1):
            began = _began_ns(document, window)
            own: dict[str, Any] = windowed.with_small_ids(window)
            own["host_name"] = host
            own["baseTimeNanoseconds"] = began + number * windowed.GAP_NS + (APART if host != hosts[0] else 0)
            path = windowed.write(folder, own, windowed.block(number, rank), rank, 11 + rank)
            entries.append((path, number, rank, 11 + rank))
    windowed.manifest(folder, entries, mode="sample")
    return folder


def _began_ns(document: dict[str, Any], window: dict[str, Any]) -> int:
    """When a window's first event began in the whole trace, as nanoseconds since the epoch."""
    first = next(event for event in window["traceEvents"] if event["ts"] == 0)
    alike = [
        event
        for event in document["traceEvents"]
        if all(event.get(key) == first.get(key) for key in ("name", "cat", "dur", "args"))
    ]
    return windowed.STARTED_NS + round(float(alike[0]["ts"]) * 1e3)


def ranks(analysis: Analysis) -> Ranks:
    assert analysis.ranks is not None
    return analysis.ranks


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made.run(tmp_path_factory.mktemp("run"), made.TWO, made.late_host(1))


def test_windows_of_ranks_are_compared_over_all_of_them(files: list[Path], tmp_path: Path) -> None:
    folder = recorded(files, tmp_path / "recording", ((2, 4), (2, 4)), ("a", "b"))
    analysis = analyze(read_traces([folder]))
    found = ranks(analysis)
    assert [len(trace.windows) for trace in analysis.traces] == [3, 3]
    assert found.steps_matched == made.TWO.output
    assert found.shares[1].member.by == "collectives"
    assert found.shares[1].member.offset_ns == pytest.approx(APART, abs=1_000)
    assert found.straggler is not None
    assert found.straggler.share.line.device.rank == 1
    for share in found.shares:
        assert share.waiting_ns is not None
        assert share.busy_ns == sum(int(busy) for busy in share.line.steps["busy_ns"])
    # The time between windows is neither idle nor busy.
    (group,) = found.groups
    assert max(step.duration_ns for step in group.steps) < windowed.GAP_NS / 100
