"""The prompts' part of the mixed steps' time, in the document and on the page."""

from __future__ import annotations

from dataclasses import replace

from tests.analysis.lines import line
from tests.analysis.test_mixed import chunk, decode, gemm
from tests.report import factory
from traceanalyzer.analysis import ledger, phases, roofline
from traceanalyzer.analysis.pipeline import DeviceAnalysis
from traceanalyzer.report import format as fmt
from traceanalyzer.report import tables
from traceanalyzer.report.views.phase_table import phase_view

LABEL = "Of it, for reading prompts"


def test_the_document_has_it_for_mixed_steps_alone() -> None:
    steps = [chunk(0, 100, prompt=8, past=16, sequences=2, context=20), decode(100, 60, 2, 22)]
    timeline = line([gemm(0, 100, 0), gemm(100, 60, 1, 5)], steps=steps)
    book = ledger.account(timeline)
    found = phases.summarize(timeline, book)
    device = DeviceAnalysis(timeline, book, roofline.by_kernel(timeline), found)
    rows = {phase.phase: tables.phase_row(device, phase) for phase in found}
    assert (rows["mixed"].prefill_time_share, rows["mixed"].prefill_time_confidence) == (0.4, 0.85)
    assert rows["decode"].prefill_time_share is None
    unknown = tables.phase_row(device, replace(found[-1], split=None))
    assert (unknown.prefill_time_share, unknown.prefill_time_confidence) == (None, None)


def test_the_page_says_it_beside_the_time_of_the_phase() -> None:
    shown = [
        factory.phase("decode"),
        factory.phase("mixed", prefill_time_share=0.14, prefill_time_confidence=0.85),
    ]
    view = phase_view(factory.gpu_generation(phases=shown))
    assert view is not None
    figures = dict(view.rows)
    assert [figure.text for figure in figures[LABEL]] == [
        fmt.UNKNOWN,
        f"{fmt.percent(0.14)} (confidence {fmt.percent(0.85)})",
    ]
    without = phase_view(factory.gpu_generation(phases=shown[:1]))
    assert without is not None
    assert LABEL not in dict(without.rows)
