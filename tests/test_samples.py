"""The samples: recordings against what was asked of the model, with closed forms written here; simulated pages."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import analyze, read_trace, render
from traceanalyzer.report.document import Report
from traceanalyzer.report.html import from_html
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.presets import preset
from traceanalyzer.simulate.write import simulate

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
NAMES = ("tiny-llama-cpu", "tiny-llama-cpu-batch4")


@dataclass(frozen=True)
class Truth:
    """What was asked of the model, and the work that follows from it."""

    batch: int
    prompt: int
    new: int
    model: dict[str, int]

    def gemm_flops(self, tokens: int) -> int:
        """Dense layers of one forward pass over `tokens` tokens; logits of the last position of each sequence only."""
        h, f = self.model["hidden_size"], self.model["intermediate_size"]
        heads, kv, d = self.model["num_attention_heads"], self.model["num_key_value_heads"], self.model["head_dim"]
        weights = h * heads * d + 2 * h * kv * d + heads * d * h + 3 * h * f
        return 2 * tokens * weights * self.model["num_hidden_layers"] + 2 * self.batch * h * self.model["vocab_size"]

    def attention_flops(self, pairs: int) -> int:
        """QK^T and PV over `pairs` (query, key) pairs per sequence and head: 2 FLOPs per multiply-add, twice.

        A causal mask leaves half of the square, the diagonal counting half.
        """
        m = self.model
        return 4 * pairs * self.batch * m["num_attention_heads"] * m["head_dim"] * m["num_hidden_layers"]

    @property
    def contexts(self) -> range:
        """Keys that each decode step attends to, its own token among them."""
        return range(self.prompt + 1, self.prompt + self.new)


@cache
def truth(name: str) -> Truth:
    data = json.loads((SAMPLES / f"{name}.truth.json").read_text())
    return Truth(data["batch"], data["prompt_tokens"], data["new_tokens"], data["model"])


@cache
def report(name: str) -> Report:
    return analyze([read_trace(SAMPLES / f"{name}.json.gz")])


def phase(name: str, wanted: str) -> Any:
    (row,) = (row for row in report(name).phases if row.phase == wanted)
    return row


def flops(result: Report, wanted: str, category: str) -> float:
    rows = [row for row in result.kernels if row.phase == wanted and row.category == category]
    assert rows
    assert not any(row.flops is None for row in rows)
    return sum(row.flops or 0.0 for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_one_prefill_and_the_decode_steps(name: str) -> None:
    t, result = truth(name), report(name)
    steps = [step for step in result.steps if step.phase != "other"]
    assert [step.phase for step in steps] == ["prefill"] + ["decode"] * (t.new - 1)
    assert [step.tokens for step in steps] == [t.batch * t.prompt] + [t.batch] * (t.new - 1)
    assert {step.sequences for step in steps} == {t.batch}
    assert [step.context_sum for step in steps[1:]] == [t.batch * k for k in t.contexts]
    assert result.run.workload == "generation"
    assert result.run.model is not None
    assert result.run.model.layers == t.model["num_hidden_layers"]


@pytest.mark.parametrize("name", NAMES)
def test_phases_count_the_tokens_that_were_asked_for(name: str) -> None:
    t = truth(name)
    prefill, decode = phase(name, "prefill"), phase(name, "decode")
    assert (prefill.steps, prefill.prefill_tokens) == (1, t.batch * t.prompt)
    assert (decode.steps, decode.decode_tokens, decode.output_tokens) == (t.new - 1, *[t.batch * (t.new - 1)] * 2)


@pytest.mark.parametrize("name", NAMES)
def test_work_equals_the_closed_forms(name: str) -> None:
    assert_work(report(name), truth(name))


def assert_work(result: Report, t: Truth) -> None:
    assert flops(result, "prefill", "gemm") == t.gemm_flops(t.batch * t.prompt)
    assert flops(result, "decode", "gemm") == t.gemm_flops(t.batch) * (t.new - 1)
    assert flops(result, "prefill", "attention") == t.attention_flops(t.prompt**2 // 2)
    assert flops(result, "decode", "attention") == t.attention_flops(sum(t.contexts))


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_is_the_span(name: str) -> None:
    result = report(name)
    (device,) = result.devices
    assert device.kind == "cpu"
    assert sum(round(row.us * 1000) for row in result.ledger) == round(device.span_us * 1000)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_says_nothing_about_the_machine(name: str) -> None:
    packed = (SAMPLES / f"{name}.json.gz").read_bytes()
    assert len(packed) < 1_000_000
    text = gzip.decompress(packed).decode()
    assert set(json.loads(text)) <= {
        "schemaVersion", "deviceProperties", "record_shapes", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents",
    }  # fmt: skip
    for told in ("/home/", "/root/", "/tmp/", "host", "site-packages", "traceName"):
        assert told not in text


def test_a_new_recording_has_the_same_steps_and_work(tmp_path: Path) -> None:
    name = "tiny-llama-cpu"
    command = [sys.executable, str(SAMPLES / "record_cpu.py"), "--out", str(tmp_path), "--only", name]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    for made in tmp_path.iterdir():
        assert made.name in (f"{name}.json.gz", f"{name}.truth.json")
    new, t = analyze([read_trace(tmp_path / f"{name}.json.gz")]), truth(name)
    assert [step.phase for step in new.steps if step.phase != "other"] == ["prefill"] + ["decode"] * (t.new - 1)
    assert_work(new, t)


def test_the_page_beside_the_sample_is_what_is_rendered_now() -> None:
    kept = (SAMPLES / "tiny-llama-cpu.html").read_text(encoding="utf-8")
    assert kept == render(report("tiny-llama-cpu"), "html"), "run `make samples`"


SIMULATED = ("simulated-8b-alone", "simulated-8b-eight")


@cache
def page(name: str) -> Report:
    return from_html((SAMPLES / f"{name}.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_page_is_current_and_says_what_it_is(name: str) -> None:
    text = (SAMPLES / f"{name}.html").read_text(encoding="utf-8")
    assert render(page(name), "html") == text, "stale: `make samples`"
    assert "no GPU ran this" in text


def test_utilisation_is_full_and_throughput_is_not() -> None:
    """Alone 45 tokens/s, with eight requests 120: the GPU is as busy, and the report says what to change."""
    alone, eight = page(SIMULATED[0]), page(SIMULATED[1])
    rates = [row.tokens_per_s for report in (alone, eight) for row in report.phases if row.phase == "decode"]
    assert rates == [pytest.approx(45.0, rel=0.02), pytest.approx(120.0, rel=0.02)]
    for report in (alone, eight):
        assert report.verdict.bound == "memory"
        assert (report.span.gpu_util or 0.0) > 0.9
        assert (report.span.bandwidth_share or 1.0) < 0.4
    first = eight.findings[0]
    assert first.id == "requests_in_turns"
    assert first.predicted_tokens_per_s == pytest.approx(8 * 45.0, rel=0.1)


def test_a_simulated_page_is_what_the_analysis_says_of_the_run(tmp_path: Path) -> None:
    """The first tokens of the same run, analysed now, against the page."""
    scenario = replace(preset("eight"), output=6)
    (written,) = simulate(scenario, tmp_path / "run.json.gz", passes)
    fresh, kept = analyze([read_trace(written.trace)]), page(SIMULATED[1])
    one, other = (next(row for row in report.phases if row.phase == "decode") for report in (fresh, kept))
    assert (one.bound, one.sequences_mean) == (other.bound, pytest.approx(other.sequences_mean, rel=1e-3))
    turns, before = (next(row for row in report.findings if row.id == "requests_in_turns") for report in (fresh, kept))
    assert (turns.status, turns.action, turns.evidence[0]) == (before.status, before.action, before.evidence[0])
    times = [report.decode_floor.measured_us for report in (fresh, kept) if report.decode_floor]
    assert times[0] == pytest.approx(times[1], rel=0.02)
