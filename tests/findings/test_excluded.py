"""What is ruled out agrees with the page's own numbers, and the room for more sequences has one source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import pipeline
from traceanalyzer.analysis.forecast import Sensitivity
from traceanalyzer.analysis.memory import Memory
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.analysis.steps.model import Workload
from traceanalyzer.findings.evaluate import evaluate
from traceanalyzer.findings.excluded import excluded
from traceanalyzer.findings.model import Fact, Finding
from traceanalyzer.findings.registry import WINDOW
from traceanalyzer.findings.subject import subject
from traceanalyzer.report.findings import ruled_out

pytestmark = pytest.mark.usefixtures("without_hta")
SAMPLES = Path(__file__).resolve().parents[2] / "samples"
UNKNOWN = Sensitivity(None, None, None, None, None)
PLAIN = ("more_compute", "more_bandwidth", "fewer_launches", "larger_batch")


@pytest.fixture(scope="module")
def run() -> Analysis:
    found = pipeline.analyze([read_trace(SAMPLES / "tiny-llama-cpu.json.gz")])
    assert found.verdict.phase is not None
    assert {summary.phase for summary in found.main.phases} >= {"prefill", "decode"}
    return found


def about(run: Analysis, phase: str, plain: tuple[str, ...], figures: Sensitivity = UNKNOWN) -> Analysis:
    """The run with a verdict about a phase that rules these codes out."""
    summary = next(summary for summary in run.main.phases if summary.phase == phase)
    return replace(run, sensitivity=figures, verdict=replace(run.verdict, phase=summary, ruled_out=plain))


def batch(code: str, **values: float) -> tuple[Finding, ...]:
    return (Finding("decode_batch_below_ridge", "passed", phase="decode", reason=Fact(code, values)),)


@pytest.mark.parametrize(("sequences", "codes"), [(40, []), (79, []), (80, ["larger_batch"]), (200, ["larger_batch"])])
def test_a_larger_batch_is_ruled_out_from_the_ridge_on_and_not_from_half_of_it(
    run: Analysis, sequences: float, codes: list[str]
) -> None:
    found = excluded(about(run, "decode", ()), batch("batch_at_ridge", sequences=sequences, ridge=80.0))
    assert [fact.code for fact in found] == codes


def test_a_full_memory_rules_a_larger_batch_out_below_the_ridge_too(run: Analysis) -> None:
    found = excluded(about(run, "decode", ()), batch("memory_full", sequences=8, room=8))
    assert [fact.code for fact in found] == ["larger_batch_memory"]


def test_what_the_numbers_say_helps_is_not_said_to_do_nothing(run: Analysis) -> None:
    figures = Sensitivity(0.02, 0.14, None, None, None)
    said = ruled_out(about(run, "decode", PLAIN, figures), batch("batch_at_ridge", sequences=50, ridge=80.0))
    assert len(said) == 2
    assert said[0] == "A GPU with twice the compute would save 2.0 % of a decode step."
    assert said[1].startswith("Graphs or fewer launches do not help decode:")


def test_without_numbers_the_verdict_rules_out_and_names_the_phase(run: Analysis) -> None:
    said = ruled_out(about(run, "decode", PLAIN), ())
    assert [sentence.split(":")[0] for sentence in said] == [
        "More compute does not help decode", "More memory bandwidth does not help decode",
        "Graphs or fewer launches do not help decode", "A larger batch does not help decode",
    ]  # fmt: skip


def test_figures_of_a_decode_step_do_not_silence_a_verdict_about_prefill(run: Analysis) -> None:
    figures = Sensitivity(0.3, 0.3, 0.3, 0.3, 0.3)
    (said,) = ruled_out(about(run, "prefill", ("more_compute",), figures), ())
    assert said.startswith("More compute does not help prefill:")


def test_the_room_for_more_sequences_is_that_of_the_memory_section(run: Analysis) -> None:
    memory = Memory(80 * 10**9, 16e9, 131_072.0, 60e9, 1e6, 4e9, 7, "recorder", 0.9, ())
    rooms = {}
    for phase in ("prefill", "decode"):
        found = subject(replace(run, memory=memory), phase)
        assert found is not None
        rooms[phase] = found.room
    assert rooms == {"prefill": None, "decode": 7}
    without = subject(replace(run, memory=None), "decode")
    assert without is not None
    assert without.room is None


@pytest.mark.parametrize("workload", ["generation", "prefill_only", "unknown", "training", "capture"])
def test_every_rule_agrees_on_whether_this_is_a_generation_run(run: Analysis, workload: Workload) -> None:
    findings = evaluate(replace(run, runs=tuple(replace(facts, workload=workload) for facts in run.runs)))
    refused = {finding.id for finding in findings if finding.reason and finding.reason.code == "not_generation"}
    everything = {finding.id for finding in findings}
    assert refused == (everything if workload in ("training", "capture") else set())
    assert WINDOW in everything
