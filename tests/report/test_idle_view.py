"""The page's words on idle time: sentences per culprit, hostile names, and nothing where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceanalyzer import analyze, read_trace
from traceanalyzer.report import html, markdown
from traceanalyzer.report.document import IdleCause, Report, with_id
from traceanalyzer.report.strings.idle import IDLE
from traceanalyzer.report.views.idle import idle_view, sentences
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate

HOSTILE = "<img src=x onerror=alert(1)>`|](javascript:x)"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    scenario = Scenario(model="qwen2.5-0.5b", prompt=32, output=6, batch=2,
                        plants=(Plant("sync", 300_000), Plant("scheduler", 400_000)))  # fmt: skip
    path = tmp_path_factory.mktemp("idle") / "run.json"
    (written,) = simulate(scenario, path, passes, variant=Variant(stacks=True))
    return analyze([read_trace(written.trace)])


def test_each_sentence_says_how_much_of_a_step_who_took(report: Report) -> None:
    said = sentences(report, "decode")
    assert any("of each decode step: the host launches 247 kernels and copies at 8." in one for one in said)
    assert any(
        "cudaStreamSynchronize in aten::item at model.py(" in one and "wait for the device" in one for one in said
    )
    assert any("scheduler.py(210): schedule" in one for one in said)


def test_causes_sum_to_the_ledger(report: Report) -> None:
    for bucket in {row.bucket for row in report.idle_causes}:
        found = sum(row.us for row in report.idle_causes if row.bucket == bucket)
        assert found == pytest.approx(sum(row.us for row in report.ledger if row.bucket == bucket), abs=1e-6)
    (path,) = (one for one in report.critical_path if one.phase == "decode")
    assert sum(part.us or 0.0 for part in path.parts) == pytest.approx(path.step_us)


def test_the_page_and_the_markdown_say_it(report: Report) -> None:
    page, text = html.render(report), markdown.render(report)
    for needed in ('id="idle"', 'href="#idle"', IDLE["launches.title"], "What the median decode step is made of"):
        assert needed in page
    assert f"**{IDLE['idle.title']}**" in text
    assert html.from_html(page) == report


def test_hostile_names_are_text(report: Report) -> None:
    first = next(row for row in report.idle_causes if row.cause == "sync" and row.phase == "decode")
    bad = first.model_copy(update={"op": HOSTILE, "frame": HOSTILE, "call": HOSTILE, "during": HOSTILE})
    causes: list[IdleCause] = [bad if row is first else row for row in report.idle_causes]
    hostile = with_id(report.model_copy(update={"idle_causes": causes}))
    page, text = html.render(hostile), markdown.render(hostile)
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert "\\<img" in text
    assert "<img" not in text.replace("\\<img", "")


def test_nothing_known_is_no_section(report: Report) -> None:
    bare = with_id(report.model_copy(update={"idle_causes": [], "launches": [], "critical_path": []}))
    assert idle_view(bare) is None
    assert 'id="idle"' not in html.render(bare)


def test_a_cpu_has_gaps_between_operators(traces: Path) -> None:
    cpu = analyze([read_trace(traces / "cpu-switch-transformer.json.gz")])
    view = idle_view(cpu)
    assert view is not None
    assert view.title == IDLE["idle.title_cpu"]
    assert not cpu.critical_path
