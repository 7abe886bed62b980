"""What a recording adds to the page, the Markdown and the summary: what was lost first, then what was beside."""

from __future__ import annotations

import html
import re

import pytest

from tests.report import factory, recordings
from traceanalyzer import render
from traceanalyzer.analysis.beside import UNUSUAL
from traceanalyzer.report import document as doc
from traceanalyzer.report.html import from_html
from traceanalyzer.report.views.beside import TYPICAL, beside_view, log_line
from traceanalyzer.report.views.strip import strip_view
from traceanalyzer.report.views.summary import first_screen

LOST = ["The recorder dropped 3", "1 window has no file of some ranks"]


@pytest.fixture(scope="module")
def sampled() -> doc.Report:
    return recordings.sampled()


@pytest.fixture(scope="module")
def troubled() -> doc.Report:
    return recordings.troubled()


@pytest.mark.parametrize("format", ["html", "markdown", "text"])
def test_what_was_lost_is_said_first_and_once(troubled: doc.Report, format: str) -> None:
    page = render(troubled, format).split('id="quality"')[0]  # type: ignore[arg-type]
    for sentence in LOST:
        assert page.index(sentence) < page.index("Decode is bound by the host")
    first = page.split('class="part"')[0].split('id="speed"')[0]
    assert all(first.count(sentence) == 1 for sentence in LOST)
    assert "clock was held down" in first


@pytest.mark.parametrize("format", ["html", "markdown", "text"])
def test_nothing_lost_says_nothing(sampled: doc.Report, format: str) -> None:
    assert "Not in this recording" not in render(sampled, format)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["html", "markdown", "text"])
def test_every_rendering_has_the_cost_of_profiling_the_service_the_counters_and_the_log(
    sampled: doc.Report, format: str
) -> None:
    page = render(sampled, format).replace("\N{NO-BREAK SPACE}", " ")  # type: ignore[arg-type]
    page = html.unescape(re.sub(r"<[^>]+>", " ", page.replace("\\", "")))
    page = re.sub(r"\s+", " ", page).replace(":", "")
    for words in (
        "Profiling made a step 5.0 % slower (21.0 ms against 20.0 ms)",
        "Running requests 8", "KV cache in use 62 %", "GPU-Util (NVML) 97 %", "Tensor cores active 6.0 %",
        "DRAM active 61 %", "All 24,310 steps of 580 s",
        "Prefill takes 11 % of the steps' time, in these windows 2.3 %",
        "2.67 s in 2 windows, over 303 s",
    ):  # fmt: skip
        assert words.replace(":", "") in page, words


def test_the_page_shows_recorded_time_and_not_the_minutes_between(sampled: doc.Report) -> None:
    first = first_screen(sampled)
    assert {line.phase: line.time for line in first.phases}["other"] == "19.3 ms"
    strip = strip_view(sampled)
    assert strip is not None
    assert strip.windows
    rightmost = max(float(mark.x[:-1]) + float(mark.width[:-1]) for lane in strip.lanes for mark in lane.marks)
    assert rightmost == pytest.approx(100.0, abs=2.0)
    one = strip_view(factory.gpu_generation())
    assert one is not None and len(one.lanes[1].marks) == len(strip.lanes[1].marks)
    assert not one.windows


def test_a_phase_of_nothing_but_unrecorded_time_has_no_line(sampled: doc.Report) -> None:
    hole = [row for row in sampled.ledger if row.bucket == "idle_artefact"]
    kept = [row for row in sampled.ledger if row.phase != "other"] + hole
    phases = [
        row.model_copy(update={"duration_us": recordings.BETWEEN_US}) if row.phase == "other" else row
        for row in sampled.phases
    ]
    shown = first_screen(sampled.model_copy(update={"ledger": kept, "phases": phases}))
    assert [line.phase for line in shown.phases] == ["prefill", "decode"]


def test_the_log_stands_beside_the_windows(sampled: doc.Report) -> None:
    view = beside_view(sampled)
    assert view is not None
    figures = {row.label: (row.here, row.everywhere) for row in view.log}
    assert figures["Decode step, start to start, p50"] == ("20.7 ms", "20.5 ms")
    assert figures["Decode step, start to start, p99"] == ("29.4 ms", "61.0 ms")
    assert figures["Prefill's share of the steps' time"] == ("2.3 %", "11 %")
    assert figures["Sequences per decode step"] == ("1", "8")
    assert "Mixed steps' share of the steps' time" not in figures
    assert view.typical.startswith("These windows are typical")


def test_windows_whose_steps_differ_much_are_not_typical(troubled: doc.Report) -> None:
    view = beside_view(troubled)
    assert view is not None
    assert view.typical.startswith("These windows are not typical")
    assert TYPICAL == UNUSUAL


def test_a_log_that_says_no_more_than_the_windows_is_left_out(sampled: doc.Report) -> None:
    same = recordings.STEPLOG.model_copy(update={"steps": len(sampled.steps)})
    report = sampled.model_copy(update={"steplog": same})
    assert not log_line(report)
    view = beside_view(report)
    assert view is not None and not view.log


@pytest.mark.parametrize(
    ("step", "usual", "begins"),
    [
        (20_000.0, 20_000.0, "Profiling made no difference"),
        (18_000.0, 20_000.0, "A step takes 18.0 ms under the profiler"),
        (21_000.0, None, "A step took 21.0 ms under the profiler"),
        (30_000.0, 20_000.0, "Profiling made a step 50 % slower"),
    ],
)
def test_the_cost_of_profiling_in_words(sampled: doc.Report, step: float, usual: float | None, begins: str) -> None:
    share = step / usual - 1 if usual else None
    cost = doc.Profiling(step_us=step, unprofiled_step_us=usual, overhead_share=share)
    assert first_screen(sampled.model_copy(update={"profiling": cost})).profiling.startswith(begins)


def test_counters_in_words(troubled: doc.Report) -> None:
    view = beside_view(troubled)
    assert view is not None
    said = {fact.label: fact.figure.text for fact in view.counters}
    assert said["SM clock"] == "1,410 of 1,980 MHz"
    assert said["Clock held down"] == "34 % of the time"
    assert said["Held down by"] == "sw power cap"
    assert said["Power"] == "412 of 700 W"
    recorded = {fact.label: fact.figure.text for fact in view.recording}
    assert recorded["Windows"] == "2 of 3"
    assert recorded["Recorded because of"] == "timer, slow steps"
    assert recorded["Dropped"] == "busy 2, quota 1"
    assert recorded["Batch size before a window"] == "not settled in time"


def test_unknown_counters_are_left_out(sampled: doc.Report) -> None:
    nothing = dict.fromkeys(doc.Counters.model_fields)
    bare = doc.Counters(**{**nothing, "throttle_reasons": [], "source": "NVML", "util_gpu": 0.5})  # type: ignore[arg-type]
    view = beside_view(sampled.model_copy(update={"counters": bare}))
    assert view is not None
    assert [fact.label for fact in view.counters] == ["GPU-Util (NVML)"]


def test_a_trace_alone_has_no_such_section() -> None:
    report = factory.gpu_generation()
    assert beside_view(report) is None
    assert 'id="beside"' not in render(report)


@pytest.mark.parametrize("name", ["sampled", "troubled"])
def test_the_page_reads_back_and_the_markdown_stays_short(name: str, request: pytest.FixtureRequest) -> None:
    report: doc.Report = request.getfixturevalue(name)
    assert from_html(render(report)) == report
    assert len(render(report, "markdown").splitlines()) <= 60
