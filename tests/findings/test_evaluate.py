"""Ranking, quantising, and every rule on every trace at hand: no crash, and no answer that contradicts itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.findings.made import US, asked, gemm, phase, small
from traceanalyzer import analyze, read_trace
from traceanalyzer.analysis import pipeline
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.findings.answer import BOUNDS, saved
from traceanalyzer.findings.evaluate import _expected, ask, evaluate, quantised
from traceanalyzer.findings.model import Finding
from traceanalyzer.findings.registry import RULES, WINDOW

pytestmark = pytest.mark.usefixtures("without_hta")
ROOT = Path(__file__).resolve().parents[2]
REAL = (
    "b200-vllm-eager-prefill.json.gz",
    "h100-hf-qwen1.5-forward.json.gz",
    "mi300x-sglang-qwen3-8b-prefill.json.gz",
    "mi300x-vllm-decode-full-graph.json.gz",
    "mi300x-inductor-layer.json.gz",
    "mi300x-sglang-graph-capture-bs32.json.gz",
    "rtx4080-nanovllm-decode-0.json",
    "rtx4080-nanovllm-decode-100.json",
    "a100-switch-transformer-128tok.json.gz",
    "cpu-switch-transformer.json.gz",
    "gp100-no-tensor-cores.json.gz",
    "h800-deepseek-v3-training.json.gz",
    "amd-tall-skinny-gemm-no-correlation.json.gz",
    "broken-truncated.json",
)


@pytest.mark.parametrize(
    ("saving", "step", "expected"),
    [
        (4_130.0, 20_000.0, 4_200.0),  # two digits would be 4,100, a hundredth of the step is 200
        (1_234.0, 2_000.0, 1_200.0),
        (9_960.0, 10_000.0, 10_000.0),
        (30_000.0, 10_000.0, 10_000.0),
        (40.0, 10_000.0, 0.0),
        (-5.0, 10_000.0, 0.0),
        (math.nan, 10_000.0, 0.0),
    ],
)
def test_savings_are_no_finer_than_two_digits_and_a_hundredth_of_a_step(
    saving: float, step: float, expected: float
) -> None:
    assert quantised(saving, step) == pytest.approx(expected)


def test_predictions_agree_with_the_quantised_saving() -> None:
    found = asked("weights_dominate", phase([gemm(100, 98), small(23)]))
    assert found.saving_ns is not None
    assert found.saving_ns + (found.predicted_step_ns or 0.0) == pytest.approx(123 * US)
    assert found.saving_share == pytest.approx(found.saving_ns / (123 * US))
    assert found.predicted_tokens_per_s == pytest.approx(1e9 / (found.predicted_step_ns or 1.0))


@pytest.mark.parametrize(("left_ns", "rate"), [(100.0, 1e7), (0.0, None), (-100.0, None)])
def test_a_saving_that_rounds_to_the_whole_step_leaves_what_the_rule_predicts(
    left_ns: float, rate: float | None
) -> None:
    about = phase([gemm(80, 75), small(20)])
    touched = np.ones(len(about.rows), np.bool_)
    answer = saved(about, about.step_ns - left_ns, touched, (), 0.5)
    found = ask(replace(RULES[0], needs=(), judge=lambda _: answer), about)
    assert found.saving_ns == about.step_ns
    assert found.predicted_step_ns == max(left_ns, 0.0)
    assert found.predicted_tokens_per_s == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize("name", REAL)
def test_every_rule_answers_on_recorded_traces(traces: Path, name: str) -> None:
    analysis = pipeline.analyze([read_trace(traces / name)])
    findings = evaluate(analysis)
    assert sorted(finding.id for finding in findings) == sorted([*(rule.id for rule in RULES), WINDOW])
    order = ["found", "error", "passed", "not_applicable"]
    places = [order.index(finding.status) for finding in findings]
    assert places == sorted(places)
    of_any_bound = {rule.id for rule in RULES if set(rule.relieves) == set(BOUNDS)}
    expected = [
        (finding.saving_share_of_span or 0.0) * (finding.confidence or 0.0)
        for finding in findings
        if finding.status == "found" and finding.id in of_any_bound
    ]
    assert expected == sorted(expected, reverse=True)
    names = set(analysis.main.timeline.table["name"])
    for finding in findings:
        assert (finding.reason is None) == (finding.status == "found")
        assert {touched.name for touched in finding.kernels} <= names
        if finding.saving_ns is None:
            continue
        assert 0.0 < (finding.saving_share or 0.0) <= 1.0
        assert (finding.saving_share_of_span or 0.0) <= (finding.saving_share or 0.0)
        assert (finding.predicted_step_ns or 0.0) > 0.0
        assert 0.0 < (finding.confidence or 0.0) <= 1.0
        assert finding.kernels
        times = [touched.ns_per_step for touched in finding.kernels]
        assert times == sorted(times, reverse=True)


def test_all_other_traces_have_answers_too(traces: Path) -> None:
    answered = 0
    for path in sorted(traces.iterdir()):
        if path.name in REAL or path.name == "expected.json":
            continue
        try:
            analysis = pipeline.analyze([read_trace(path)])
        except TraceAnalyzerError:
            continue
        answered += len(evaluate(analysis)) == len(RULES) + 1
    assert answered > 15


def found_in(traces: Path, name: str) -> dict[str, str]:
    findings = evaluate(pipeline.analyze([read_trace(traces / name)]))
    return {finding.id: finding.status for finding in findings}


def test_training_and_captures_get_no_advice(traces: Path) -> None:
    for name in ("h800-deepseek-v3-training.json.gz", "mi300x-sglang-graph-capture-bs32.json.gz"):
        assert set(found_in(traces, name).values()) == {"not_applicable"}


def test_eager_elementwise_kernels_of_a_recorded_prefill_are_found(traces: Path) -> None:
    """An eager Hugging Face forward pass, whose elementwise kernels and copies exceed its matrix products."""
    assert found_in(traces, "h100-hf-qwen1.5-forward.json.gz")["unfused_elementwise_prefill"] == "found"


def test_one_replayed_step_is_too_short_a_window_and_says_what_is_missing(traces: Path) -> None:
    found = found_in(traces, "mi300x-vllm-decode-full-graph.json.gz")
    assert found[WINDOW] == "found"
    assert found["launch_bound_decode"] == "passed"
    assert found["communication_exposed"] == "not_applicable"


def test_the_report_holds_the_findings_in_sentences() -> None:
    report = analyze([read_trace(ROOT / "samples" / "tiny-llama-cpu.json.gz")])
    assert len(report.findings) == len(RULES) + 1
    for finding in report.findings:
        assert finding.title
        assert "_" not in finding.title
        assert (finding.action is None) == (finding.status != "found")
        assert finding.status == "found" or (finding.reason or "").endswith(".")


def test_a_change_beside_what_binds_the_phase_counts_half() -> None:
    batch = Finding("decode_batch_below_ridge", "found", phase="decode", saving_share_of_span=0.7, confidence=0.6)
    graphs = Finding("launch_bound_decode", "found", phase="decode", saving_share_of_span=0.3, confidence=0.9)
    assert _expected(batch, {"decode": "host"}) == pytest.approx(0.7 * 0.6 / 2)
    assert _expected(batch, {"decode": "host"}) < _expected(graphs, {"decode": "host"}) == pytest.approx(0.27)
    for bound in ("memory", "mixed", "unknown"):
        assert _expected(batch, {"decode": bound}) == pytest.approx(0.7 * 0.6)
