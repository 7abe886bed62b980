"""What the page says of Holistic Trace Analysis: its figures and ours side by side, on recorded traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from traceanalyzer import analyze, read_trace
from traceanalyzer.report import format as fmt
from traceanalyzer.report.document import Report
from traceanalyzer.report.html import render
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.hta import hta_view
from traceanalyzer.server import sandbox
from traceanalyzer.server.child import RENDERINGS
from traceanalyzer.server.settings import AnalysisLimits

ROOT = Path(__file__).resolve().parents[2]
QWEN, RANK = "h100-hf-qwen1.5-forward.json.gz", "v100-dlrm-training-rank0.pt.trace.json.gz"


@cache
def report(path: Path) -> Report:
    return analyze([read_trace(path)])


def tables(result: Report) -> dict[str, tuple[tuple[str, ...], ...]]:
    view = hta_view(result)
    assert view is not None
    assert all(note.endswith(".") for _, note in view.tables)
    return {table.caption: (table.columns, *table.rows) for table, _ in view.tables}


def test_its_times_stand_beside_ours(traces: Path) -> None:
    result = report(traces / QWEN)
    head, whole, *phases = tables(result)[text("hta.times")]
    assert head.index(text("hta.idle_ours")) == head.index(text("hta.idle")) + 1
    cells = dict(zip(head, whole, strict=True))
    (device,) = result.devices
    assert cells[text("hta.kernel")] == fmt.duration(device.span_us)
    assert cells[text("hta.idle")] == cells[text("hta.idle_ours")] == fmt.duration(device.span_us - device.busy_us)
    assert [row[0] for row in phases] == ["Prefill", "Other"]
    ledger = sum(row.us for row in result.ledger if row.phase == "prefill" and row.group == "idle")
    assert dict(zip(head, phases[0], strict=True))[text("hta.idle_ours")] == fmt.duration(ledger)
    assert text("hta.overlap") not in head


def test_coverage_is_told(traces: Path) -> None:
    """Of 1,707 activities 1,197 have a launch call that HTA knows."""
    found = tables(report(traces / QWEN))
    (_, launches) = found[text("hta.launches")]
    assert launches[:3] == (text("hta.whole"), "1,197", "70 %")
    (head, stream) = found[text("hta.streams")]
    assert (stream[0], stream[head.index(text("hta.queue_coverage"))]) == ("7", "70 %")


def test_types_that_ran_at_once_are_a_row(traces: Path) -> None:
    found = tables(report(traces / RANK))
    assert [row[0] for row in found[text("hta.types")][1:]] == [
        "communication", "computation", "computation with communication", "memory",
    ]  # fmt: skip
    assert found[text("hta.times")][0][-1] == text("hta.overlap")
    assert found[text("hta.times")][1][-1] == "4.5 %"


def test_what_is_not_asked_is_not_shown(traces: Path) -> None:
    """A graph's launches say nothing, and a CPU run has no section."""
    found = tables(report(traces / "mi300x-vllm-decode-full-graph.json.gz"))
    assert text("hta.launches") not in found
    assert text("hta.queue_coverage") not in found[text("hta.streams")][0]
    cpu = report(ROOT / "samples" / "tiny-llama-cpu.json.gz")
    assert cpu.hta is None
    assert hta_view(cpu) is None
    assert 'id="hta"' not in render(cpu)


def test_the_page_holds_the_section_in_its_appendix(traces: Path) -> None:
    page = render(report(traces / QWEN))
    assert page.index('id="appendix"') < page.index('id="hta"') < page.index('id="definitions"')
    assert text("hta.title") in page


def test_the_confined_child_of_a_server_has_the_figures_too(traces: Path, tmp_path: Path) -> None:
    (tmp_path / QWEN).write_bytes((traces / QWEN).read_bytes())
    (tmp_path / "out").mkdir()
    limits = AnalysisLimits()
    outcome = sandbox.run_child(["traceanalyzer.server.child", QWEN, "out"], limits, tmp_path)
    assert outcome.code == 0, outcome
    (document,) = [name for name, kind in RENDERINGS.items() if kind == "json"]
    made = Report.model_validate_json((tmp_path / "out" / document).read_text(encoding="utf-8"))
    assert made.hta == report(traces / QWEN).hta
    assert made.hta is not None
    assert pytest.approx(0.70, abs=0.005) == made.hta.launches[0].coverage
