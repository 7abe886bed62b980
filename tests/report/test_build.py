"""From analysis to document: several devices, long lists, names, and what is shared between them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.lines import device, line
from traceanalyzer.analysis import ledger, phases, roofline
from traceanalyzer.analysis.model import Observed, describe
from traceanalyzer.analysis.pipeline import DeviceAnalysis
from traceanalyzer.report import tables
from traceanalyzer.report.described import described
from traceanalyzer.report.values import MAX_NAME, capped, number, us, whole


def analysed(steps: int, rank: int, names: int = 1) -> DeviceAnalysis:
    """A device of `steps` decode steps of one kernel each, 10 ns every 20 ns, with `names` kernel names."""
    rows = [{"start": 20 * i, "duration": 10, "step": i, "name": i % names} for i in range(steps)]
    found = [{"phase": "decode", "start": 20 * i, "end": 20 * i + 10} for i in range(steps)]
    timeline = line(rows, steps=found, info=device(rank=rank))
    book = ledger.account(timeline)
    return DeviceAnalysis(timeline, book, roofline.by_kernel(timeline), phases.summarize(timeline, book))


def test_the_first_device_keeps_its_steps_whatever_the_others_have() -> None:
    rows, omitted = tables.step_rows([analysed(1500, 2), analysed(1500, 0), analysed(1500, 1)])
    assert len(rows) == tables.MAX_STEPS
    assert omitted == 2500
    assert [sum(row.rank == rank for row in rows) for rank in (2, 0, 1)] == [1500, 500, 0]
    assert rows[0].duration_us == 0.01
    assert rows[0].period_us == 0.02


def test_kernels_beyond_the_limit_are_summed_per_device_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_KERNELS", 30)
    rows = tables.kernel_rows([analysed(40, 1, names=20), analysed(40, 0, names=20)])
    assert [row.rank for row in rows[:20]] == [1] * 20, "the first device's kernels come first"
    (rest,) = [row for row in rows if row.name == "(rest)"]
    assert (rest.rank, rest.count, rest.flops) == (0, 20, None)
    assert round(sum(row.total_us for row in rows) * 1000) == 2 * 40 * 10


def test_a_graph_capture_is_no_step() -> None:
    rows: list[dict[str, Any]] = [{"start": 0, "duration": 10, "step": 0}]
    timeline = line(rows, steps=[{"phase": "capture", "start": 0, "end": 10, "complete": False}])
    book = ledger.account(timeline)
    found = DeviceAnalysis(timeline, book, roofline.by_kernel(timeline), phases.summarize(timeline, book))
    assert tables.step_rows([found]) == ([], 0)
    (phase,) = found.phases
    assert (phase.phase, phase.bound.name, phase.duration_ns) == ("capture", "unknown", 10)


def test_cells() -> None:
    assert us(1500) == 1.5
    assert us(float("nan")) is None
    assert us(None) is None
    assert number(float("nan")) is None
    assert number(2) == 2.0
    assert whole(float("nan")) is None
    assert whole(7.0) == 7
    assert capped("x" * MAX_NAME) == "x" * MAX_NAME
    assert len(capped("x" * 70_000)) == MAX_NAME


def test_the_model_is_the_recorders_word_and_of_the_documents_types_only() -> None:
    block = {"name": "some/model", "layers": 32, "heads": "32", "parameters": -1, "dtype": "bf16", "odd": 1}
    model = described(describe(block, None, Observed(layers=32))[0])
    assert model is not None
    assert (model.name, model.layers, model.heads, model.parameters) == ("some/model", 32, None, None)
    assert (model.dtype, model.source) == ("bf16", "recorder")
    assert model.sources == {"name": "recorder", "layers": "recorder", "dtype": "recorder"}
    assert described(describe({}, None, Observed())[0]) is None
    trace_only = described(describe({}, None, Observed(layers=16))[0])
    assert trace_only is not None
    assert (trace_only.layers, trace_only.source) == (16, "trace")
