"""The list of kernels whose work is not known: what the page says of each, and what the document holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report import factory
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.report import build
from traceanalyzer.report.document import Report, UnknownWork
from traceanalyzer.report.html import from_html, render
from traceanalyzer.report.views.unknown import unknown_view


def unknown(name: str, **changes: object) -> UnknownWork:
    known = {"phase": "decode", "category": "moe", "role": "expert-gemm", "op": "engine::experts", "lacks": "both",
             "count": 12, "total_us": 3400.0, "share": 0.31, "rule": "moe-gemm-triton"}  # fmt: skip
    return UnknownWork.model_validate({"name": name, **known, **changes})


def report(*rows: UnknownWork) -> Report:
    return factory.gpu_generation(unknown_work=list(rows))


def test_a_name_without_a_rule_says_so() -> None:
    view = unknown_view(report(unknown("fused_moe_kernel"), unknown("mine", category="other", op=None, rule=None)))
    assert view is not None
    first, second = view.rows
    assert (first.note, first.lacks, first.share, first.op) == (
        "moe, expert-gemm",
        "FLOPs and bytes",
        "31 %",
        "engine::experts",
    )
    assert second.note == "no rule knows this name"
    assert any("decode" in line.lower() for line in view.phases)


def test_the_page_shows_the_list_only_where_there_is_one() -> None:
    page = render(report(unknown("<b>kernel</b>", lacks="bytes")))
    assert "Kernels whose work is not known, by time" in page
    assert "<b>kernel</b>" not in page
    assert from_html(page).unknown_work[0].name == "<b>kernel</b>"
    assert "Kernels whose work is not known" not in render(report())


def test_the_document_lists_what_no_model_covers_longest_first(traces: Path) -> None:
    made = build.build(analyze([read_trace(traces / "b200-vllm-eager-prefill.json.gz")]))
    rows = made.unknown_work
    assert [row.total_us for row in rows] == sorted((row.total_us for row in rows), reverse=True)
    assert {row.role for row in rows[:3]} == {"routing"}
    (prefill,) = made.phases
    assert prefill.flops_known_share is not None
    lacking = sum(row.share for row in rows if row.lacks != "bytes")
    assert lacking == pytest.approx(1 - prefill.flops_known_share)
    assert all(row.rule for row in rows)
