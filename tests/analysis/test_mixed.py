"""How mixed steps divide, against times worked out by hand and simulated runs of the same batch without the chunk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.accuracy import SCENARIOS
from tests.analysis.lines import BYTES_PER_NS, FLOPS_PER_NS, line
from traceanalyzer import read_trace
from traceanalyzer.analysis import cost, ledger, mixed, phases
from traceanalyzer.analysis.pipeline import AnalysisOptions, analyze
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.report.strings.assumptions import ASSUMPTIONS
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

Rows = list[dict[str, Any]]
PRICE = cost.Price(3.6, "EUR")
"""0.001 a second."""


def gemm(start: int, duration: int, step: int, math_ns: float = 80, weights_ns: float = 40) -> dict[str, Any]:
    return {
        "start": start, "duration": duration, "step": step, "tensor_core": 1, "dtype": "bf16", "category": "gemm",
        "role": "gemm", "flops": math_ns * FLOPS_PER_NS, "bytes": weights_ns * BYTES_PER_NS,
        "weight_bytes": weights_ns * BYTES_PER_NS,
    }  # fmt: skip


def attention(start: int, duration: int, step: int, math_ns: float, cache_ns: float, name: int = 0) -> dict[str, Any]:
    return gemm(start, duration, step, math_ns, cache_ns) | {
        "category": "attention", "role": "attention", "weight_bytes": np.nan, "kv_bytes": cache_ns * BYTES_PER_NS,
        "name": name,
    }  # fmt: skip


def decode(start: int, took: int, sequences: int, context: float, each: int = 1) -> dict[str, Any]:
    return {
        "phase": "decode", "start": start, "end": start + took, "tokens": sequences * each, "sequences": sequences,
        "prefill_tokens": 0, "decode_tokens": sequences * each, "decode_sequences": sequences, "context_sum": context,
        "query_context_sum": context,
    }  # fmt: skip


def chunk(start: int, took: int, prompt: int, past: int, sequences: int, context: float) -> dict[str, Any]:
    """A mixed step: `prompt` tokens of one prompt with `past` tokens before them, and sequences of `context` in all."""
    return {
        "phase": "mixed", "start": start, "end": start + took, "tokens": prompt + sequences, "sequences": 1 + sequences,
        "prefill_tokens": prompt, "prefill_sequences": 1, "decode_tokens": sequences, "decode_sequences": sequences,
        "context_sum": prompt + past + context, "query_context_sum": prompt * (prompt + past) + context,
    }  # fmt: skip


def one_chunk(*decodes: dict[str, Any], rows: Rows | None = None, **changes: Any) -> Timeline:
    """A mixed step of 100 ns that reads 8 tokens after 16 others, beside two sequences of 20 in all; then `decodes`."""
    steps = [chunk(0, 100, prompt=8, past=16, sequences=2, context=20) | changes, *decodes]
    own = [gemm(0, 100, 0, np.nan)] if rows is None else rows
    return line([*own, *[gemm(s["start"], s["end"] - s["start"], i, 5) for i, s in enumerate(steps) if i]], steps=steps)


def summaries(timeline: Timeline) -> dict[str, phases.PhaseSummary]:
    return {phase.phase: phase for phase in phases.summarize(timeline, ledger.account(timeline))}


def test_the_prefill_is_what_it_adds_to_a_decode_step_of_like_batch() -> None:
    found = mixed.split(one_chunk(decode(100, 60, 2, 22)))
    assert found == mixed.Split(pytest.approx(0.4), 0.85, ("decode_steps",))


@pytest.mark.parametrize(
    "unlike",
    [decode(100, 60, 3, 30), decode(100, 60, 1, 10), decode(100, 60, 2, 30), decode(100, 60, 2, 12),
     decode(100, 60, 2, 20, each=2), decode(100, 100, 2, 20)],
    ids=["more sequences", "fewer", "longer contexts", "shorter", "several tokens each", "no faster"],
)  # fmt: skip
def test_decode_steps_of_other_batches_tell_nothing(unlike: dict[str, Any]) -> None:
    assert mixed.split(one_chunk(unlike)) is None


def test_the_nearest_decode_steps_decide_and_one_slow_step_does_not() -> None:
    near = [decode(100, 60, 2, 20), decode(200, 90, 2, 20), decode(300, 60, 2, 20)]
    found = mixed.split(one_chunk(*near, decode(400, 70, 2, 24)))
    assert found is not None
    assert found.prefill_share == pytest.approx(0.4)


def test_without_contexts_like_sequences_are_enough_and_less_sure() -> None:
    found = mixed.split(one_chunk(decode(100, 60, 2, np.nan)))
    assert found == mixed.Split(pytest.approx(0.4), 0.7, ("decode_steps_any_context",))
    past_unknown = {"query_context_sum": np.nan}
    assert mixed.split(one_chunk(decode(100, 60, 2, 44), **past_unknown)) == found
    assert mixed.split(one_chunk(decode(100, 60, 2, 46), **past_unknown)) is None, (
        "both hold 44, less the 8 of the chunk"
    )


def test_least_times_divide_where_no_decode_step_is_alike() -> None:
    # What the card reaches: 80 % of its math, 88 % of its bandwidth.
    rows = [gemm(0, 60, 0, 80, 40), attention(60, 40, 0, 16, 22)]
    steps = [chunk(0, 100, prompt=9, past=0, sequences=1, context=27)]
    found = mixed.split(line(rows, steps=steps))
    # Products: 100 ns of math, nine tenths for the prompt. Pairs: 45 of the prompt, 27 of the decode. Keys: 9 and 27.
    reads = 0.9 * 100 + max(20 * 45 / 72, 25 * 9 / 36)
    decodes = 0.1 * 100 + max(20 * 27 / 72, 25 * 27 / 36)
    assert found == mixed.Split(pytest.approx(reads / (reads + decodes)), 0.5, ("roofline",))


def test_a_long_past_makes_the_chunk_attend_to_more() -> None:
    rows = [gemm(0, 60, 0, 80, 40), attention(60, 40, 0, 160, 2)]
    steps = [chunk(0, 100, prompt=9, past=91, sequences=1, context=64)]
    found = mixed.split(line(rows, steps=steps))
    pairs = sum(range(92, 101))
    reads, decodes = 90 + 200 * pairs / (pairs + 64), 10 + 200 * 64 / (pairs + 64)
    assert found is not None
    assert found.prefill_share == pytest.approx(reads / (reads + decodes))


def test_unknown_work_of_one_heavy_kernel_divides_nothing() -> None:
    rows = [gemm(0, 60, 0, 80, 40), attention(60, 40, 0, 16, np.nan)]
    assert mixed.split(line(rows, steps=[chunk(0, 100, prompt=9, past=0, sequences=1, context=27)])) is None


NAMES: Mapping[str, tuple[str, str]] = {
    "by name": ("flashinfer::BatchDecodeWithPagedKVCacheKernel<x>", "fmhaSm100fKernel_QkvBfloat16_Context"),
    "by template": (
        "flash::flash_fwd_splitkv_kernel<t, false, false>",
        "flash::flash_fwd_splitkv_kernel<t, true, false>",
    ),
    "by FLOPs per byte": ("one", "other"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_attention_of_either_side_counts_by_its_own_time(names: tuple[str, str]) -> None:
    rows = [gemm(0, 50, 0, np.nan)]
    rows += [attention(50 + 25 * i, 10, 0, 1, 9, name=0) for i in range(2)]
    rows += [attention(60 + 25 * i, 15, 0, 9, 1, name=1) for i in range(2)]
    steps = [chunk(0, 100, prompt=9, past=0, sequences=1, context=27)]
    found = mixed.split(named(line(rows, steps=steps), names))
    assert found == mixed.Split(pytest.approx((30 + 0.9 * 50) / 100), 0.75, ("attention_apart",))
    uneven = named(line(rows[:-1], steps=steps), names)
    assert mixed.split(uneven) is None, "a layer with one of the two only"


def named(timeline: Timeline, names: tuple[str, str]) -> Timeline:
    return replace(timeline, trace=replace(timeline.trace, strings=names))


def test_the_surest_way_of_each_step_counts_by_time() -> None:
    rows = [gemm(0, 100, 0), gemm(100, 60, 1, 5), gemm(160, 300, 2, 80, 40), attention(460, 100, 2, 16, 22)]
    steps = [
        chunk(0, 100, prompt=8, past=16, sequences=2, context=20),
        decode(100, 60, 2, 20),
        chunk(160, 400, prompt=9, past=0, sequences=1, context=27),
    ]
    found = mixed.split(line(rows, steps=steps))
    by_roofline = (90 + 12.5) / (100 + 12.5 + 18.75)
    assert found == mixed.Split(
        pytest.approx((100 * 0.4 + 400 * by_roofline) / 500), pytest.approx(0.57), ("roofline", "decode_steps")
    )


def test_cost_takes_both_sides_of_mixed_steps() -> None:
    timeline = one_chunk(decode(100, 60, 2, 22))
    found = summaries(timeline)
    assert found["decode"].split is None
    total = cost.of(list(found.values()), 1, PRICE)
    assert total.per_1m_input == pytest.approx(0.001 * 40e-9 / 8 * 1e6)
    assert total.per_1m_output == pytest.approx(0.001 * (60e-9 + 60e-9) / (2 + 2) * 1e6)
    assert "mixed_by_decode_steps" in total.assumptions
    assert "mixed_steps_left_out" not in total.assumptions


@pytest.mark.parametrize(
    "changes",
    [{"prefill_tokens": np.nan, "decode_tokens": np.nan}, {"decode_tokens": 4}],
    ids=["tokens unknown", "several tokens each"],
)
def test_mixed_steps_whose_tokens_are_not_known_are_left_out(changes: dict[str, float]) -> None:
    found = summaries(one_chunk(decode(100, 60, 2, 22), **changes))
    total = cost.of(list(found.values()), 1, PRICE)
    assert "mixed_steps_left_out" in total.assumptions
    assert total.per_1m_input is None
    assert total.per_1m_output == pytest.approx(0.001 * 60e-9 / 2 * 1e6)


def test_every_way_has_a_sentence_that_tells_its_confidence() -> None:
    for way, sure in mixed.CONFIDENCE.items():
        assert f"(confidence {sure:.0%})".replace("%", " %") in ASSUMPTIONS[f"mixed_by_{way}"]


@pytest.mark.parametrize("name", ["chunked prefill, mixed steps", "chunked prefill, decode in graphs"])
def test_a_chunk_costs_what_its_step_takes_beyond_the_same_decode_alone(name: str, tmp_path: Path) -> None:
    """Within one part in a hundred of the step's time: alone, the batch decodes with kernels for equal lengths."""
    scenario = SCENARIOS[name]
    written = simulate(scenario, tmp_path / "run.json", passes)[0]
    analysis = analyze([read_trace(written.trace)], AnalysisOptions(price=PRICE))
    true = [s for s in _truth(written.truth) if s["phase"] == "mixed"]
    found = mixed.by_step(analysis.main.timeline)
    assert len(found) == len(true) == 10
    assert set(found["way"]) == {"decode_steps"}
    alone: dict[int, int] = {}
    for step, share in zip(true, found["prefill_share"], strict=True):
        sequences = step["decode_sequences"]
        alone[sequences] = alone.get(sequences) or _decode_alone(scenario, sequences, tmp_path)
        assert share == pytest.approx(1 - alone[sequences] / step["busy_ns"], abs=0.01)
    _every_second_is_paid_once(analysis.cost, analysis.main.phases)


def _truth(path: str) -> list[dict[str, Any]]:
    return list(json.loads(Path(path).read_text(encoding="utf-8"))["steps"])


def _decode_alone(scenario: Scenario, sequences: int, folder: Path) -> int:
    """How long the device is busy with a decode step of so many sequences when no prompt is read beside it."""
    same = replace(
        scenario, batch=sequences, prompt=scenario.prompt + 4, chunk=None, arrivals_every=0, skip_prefill=True
    )
    written = simulate(same, folder / f"{sequences}.json", passes)[0]
    return int(next(s for s in _truth(written.truth) if s["phase"] == "decode")["busy_ns"])


def _every_second_is_paid_once(found: cost.Cost | None, of: list[phases.PhaseSummary]) -> None:
    assert found is not None
    assert found.per_1m_input is not None
    assert found.per_1m_output is not None
    by_name = {phase.phase: phase for phase in of}
    read = sum(by_name[name].prefill_tokens or 0 for name in ("prefill", "mixed"))
    given = sum(by_name[name].decode_tokens or 0 for name in ("decode", "mixed"))
    paid = (found.per_1m_input * read + found.per_1m_output * given) / 1e6
    assert paid == pytest.approx(0.001 * sum(phase.observed_ns for phase in of) / 1e9)
