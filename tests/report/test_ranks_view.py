"""What the report says of ranks beside each other: page, Markdown and terminal, of simulated and changed figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.ranks import made
from traceanalyzer import analyze, read_traces
from traceanalyzer.report import document as doc
from traceanalyzer.report import html, markdown
from traceanalyzer.report import text as terminal
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.ranks import MOST_BARS, ranks_view, straggler_line


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> doc.Report:
    """Two ranks, the second one's host late, given as a folder."""
    folder = tmp_path_factory.mktemp("ranks")
    for path in made.run(folder, made.TWO, made.late_host(1)):
        path.with_name(f"{path.stem}.truth.json").unlink()
    return analyze(read_traces([folder]))


def changed(report: doc.Report, **facts: Any) -> doc.Report:
    assert report.ranks is not None
    return report.model_copy(update={"ranks": report.ranks.model_copy(update=facts)})


def test_the_document_has_every_rank_and_every_matched_step(report: doc.Report) -> None:
    found = report.ranks
    assert found is not None
    assert [(row.rank, row.offset_by) for row in found.ranks] == [(0, "reference"), (1, "collectives")]
    for row in found.ranks:
        parts = row.comm_hidden_us + row.comm_exposed_us + (row.comm_waiting_us or 0.0) + row.comm_passing_us
        assert row.comm_us == pytest.approx(parts)
    assert (found.steps_matched, len(found.steps), found.steps_omitted) == (made.TWO.output, made.TWO.output, 0)
    assert [step.delay_us for step in found.steps] == sorted((step.delay_us for step in found.steps), reverse=True)
    assert sum(step.delay_us for step in found.steps) <= (found.ranks[1].delay_us or 0.0) + 1e-6
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (1, "idle")


def test_the_straggler_is_said_first_everywhere(report: doc.Report) -> None:
    said = straggler_line(report)
    assert said.startswith("Rank 1 keeps the others waiting")
    assert said.endswith(text("ranks.cause.idle"))
    assert said.split(";")[0] in " ".join(terminal.render(report, 1000).split())
    assert "Rank 1 keeps the others waiting" in markdown.render(report)
    page = html.render(report)
    assert page.index("Rank 1 keeps the others waiting") < page.index('id="findings"')
    assert page.index('id="steps"') < page.index('id="ranks"') < page.index('id="roofline"')


def test_an_even_run_says_nothing_first_and_the_section_says_so(report: doc.Report) -> None:
    even = changed(report, straggler=None)
    assert straggler_line(even) == ""
    assert "Rank 1 keeps the others waiting" not in markdown.render(even)
    view = ranks_view(even)
    assert view is not None
    assert view.lead == text("ranks.even", steps=made.TWO.output)


def test_a_bar_is_the_whole_span_of_its_rank(report: doc.Report) -> None:
    view = ranks_view(report)
    assert view is not None
    assert [bar.label for bar in view.bars] == ["Rank 0", "Rank 1"]
    for bar in view.bars:
        assert sum(segment.width for segment in bar.segments) == pytest.approx(100)
    waits = [any(segment.kind == "tensor_core_waiting" for segment in bar.segments) for bar in view.bars]
    assert waits == [True, False]
    assert {kind for kind, _ in view.legend} <= {
        "compute",
        "moving",
        "tensor_core_waiting",
        "busy_no_tensor_core",
        "idle",
    }


def test_what_is_unknown_is_said_and_not_zero(report: doc.Report) -> None:
    assert report.ranks is not None
    blind = {"comm_waiting_us": None, "late_us": None, "delay_us": None, "last_to": None, "offset_us": None,
             "offset_by": None, "slowest_steps": None}  # fmt: skip
    rows = [row.model_copy(update=blind) for row in report.ranks.ranks]
    aligned = doc.RankAlignment(by=None, spread_us=None)
    view = ranks_view(changed(report, straggler=None, ranks=rows, aligned=aligned, steps_matched=0, steps=[], groups=2))
    assert view is not None
    assert view.lead == text("ranks.no_steps")
    assert view.steps is None
    assert text("ranks.clock.none") in view.notes
    assert text("ranks.groups", count=2) in view.notes
    cells = dict(zip(view.ranks.columns, view.ranks.rows[0], strict=True))
    assert {cells[text(f"ranks.{head}")] for head in ("waiting", "late", "delay", "last", "offset")} == {"unknown"}
    assert cells[text("ranks.group")] == "0"


def test_bubbles_are_shown_where_there_are_stages(report: doc.Report) -> None:
    stage = doc.PipelineBubble(rank=0, device=0, idle_us=10.0, passing_us=30.0, span_us=100.0, share=0.4)
    view = ranks_view(changed(report, bubbles=[stage]))
    assert view is not None
    assert view.bubbles is not None
    assert view.bubbles.rows == (("Rank 0", "10.0 µs", "30.0 µs", "40 %"),)
    plain = ranks_view(report)
    assert plain is not None
    assert plain.bubbles is None
    assert text("ranks.passing") not in plain.ranks.columns


def test_many_ranks_have_bars_up_to_a_limit(report: doc.Report) -> None:
    assert report.ranks is not None
    rows = [report.ranks.ranks[0].model_copy(update={"rank": number}) for number in range(MOST_BARS + 3)]
    view = ranks_view(changed(report, ranks=rows))
    assert view is not None
    assert (len(view.bars), len(view.ranks.rows)) == (MOST_BARS, MOST_BARS + 3)
    assert view.more_bars == text("ranks.more_bars", count=3)


def test_one_device_has_no_section() -> None:
    sample = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu.json.gz"
    alone = analyze(read_traces([sample]))
    assert alone.ranks is None
    assert 'id="ranks"' not in html.render(alone)
    assert '#ranks"' not in html.render(alone)
