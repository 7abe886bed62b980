"""Phase summaries, bounds, the floor, the request view and the cost against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.analysis.lines import BANDWIDTH_GBS, BYTES_PER_NS, FLOPS_PER_NS, device, line
from traceanalyzer.analysis import cost, floor, forecast, ledger, phases, request, verdict
from traceanalyzer.analysis.timeline import Timeline

WEIGHTS = 40 * BYTES_PER_NS
"""Bytes that take 40 ns to read."""


def gemm(start: int, duration: int, step: int, compute_ns: float, memory_ns: float, **more: Any) -> dict[str, Any]:
    return {
        "start": start, "duration": duration, "step": step, "tensor_core": 1, "dtype": "bf16", "category": "gemm",
        "role": "gemm", "flops": compute_ns * FLOPS_PER_NS, "bytes": memory_ns * BYTES_PER_NS,
        "weight_bytes": WEIGHTS,
    } | more  # fmt: skip


def attention(start: int, duration: int, step: int, memory_ns: float, **more: Any) -> dict[str, Any]:
    return gemm(start, duration, step, 0.1, memory_ns) | {
        "category": "attention", "role": "attention", "weight_bytes": np.nan, "kv_bytes": memory_ns * BYTES_PER_NS,
    } | more  # fmt: skip


def generation(decodes: int = 3, sequences: int = 2, prompt: int = 8, **info: Any) -> Timeline:
    """One prefill of 100 ns, then decode steps of 60 ns every 80 ns, each reading 40 ns of weights and 10 ns of KV."""
    rows = [gemm(0, 100, 0, 80, 30)]
    steps: list[dict[str, Any]] = [{
        "phase": "prefill", "start": 0, "end": 100, "tokens": sequences * prompt, "sequences": sequences,
        "prefill_tokens": sequences * prompt, "prefill_sequences": sequences, "context_sum": sequences * prompt,
    }]  # fmt: skip
    for i in range(decodes):
        at = 120 + 80 * i
        rows += [gemm(at, 45, i + 1, 5, 40), attention(at + 45, 15, i + 1, 10)]
        steps.append({
            "phase": "decode", "start": at, "end": at + 60, "tokens": sequences, "sequences": sequences,
            "decode_tokens": sequences, "decode_sequences": sequences, "context_sum": sequences * (prompt + i + 1),
        })  # fmt: skip
    return line(rows, steps=steps, info=device(**info))


def summaries(timeline: Timeline) -> dict[str, phases.PhaseSummary]:
    return {phase.phase: phase for phase in phases.summarize(timeline, ledger.account(timeline))}


def test_phases_share_the_span_and_count_tokens_of_complete_steps() -> None:
    timeline = generation()
    found = summaries(timeline)
    assert list(found) == ["prefill", "decode"]
    assert sum(phase.duration_ns for phase in found.values()) == timeline.span_ns == 340
    prefill, decode = found["prefill"], found["decode"]
    assert (prefill.steps, prefill.duration_ns, prefill.busy_ns, prefill.prefill_tokens) == (1, 100, 100, 16)
    assert (decode.steps, decode.duration_ns, decode.busy_ns, decode.decode_tokens) == (3, 240, 180, 6)
    assert decode.idle_ns == 60
    assert decode.output_tokens == 6
    assert prefill.output_tokens is None
    assert decode.sequences_mean == 2
    assert decode.context_mean == pytest.approx(10)
    assert decode.step_ns == (60, 60, 60, 60)
    assert decode.period_ns_mean == 80
    assert decode.kernels_per_step == 2


def test_shares_of_the_peaks_are_over_the_phase_not_over_its_busy_time() -> None:
    decode = summaries(generation())["decode"]
    assert decode.compute_share == pytest.approx(3 * 5.1 / 240)
    assert decode.bandwidth_share == pytest.approx(3 * 50 / 240)
    assert decode.flops == pytest.approx(3 * 5.1 * FLOPS_PER_NS)


def test_compute_binds_prefill_and_memory_binds_decode() -> None:
    found = summaries(generation())
    assert found["prefill"].bound.name == "compute"
    assert found["decode"].bound.name == "memory"
    assert verdict.decide(list(found.values())).bound == "memory"


def test_waiting_for_the_host_binds_a_phase_of_gaps() -> None:
    rows = [gemm(100 * i, 10, 0, 1, 9, launch=i) for i in range(5)]
    steps = [{"phase": "decode", "start": 0, "end": 410, "tokens": 1, "sequences": 1, "decode_tokens": 1}]
    launches = [(100 * i - 5, 4) for i in range(5)]
    assert summaries(line(rows, steps=steps, launches=launches))["decode"].bound.name == "host"


def test_unknown_work_leaves_the_bound_unknown_unless_the_tokens_tell() -> None:
    unknown = {"flops": np.nan, "bytes": np.nan}
    rows = [gemm(0, 100, 0, 0, 0) | unknown]
    few = {"phase": "decode", "start": 0, "end": 100, "tokens": 8, "sequences": 8}
    many = few | {"tokens": 90, "sequences": 90}
    # The test device's ridge is 100 FLOP/B: 8 tokens are far below a quarter of it, 90 are not.
    told = summaries(line(rows, steps=[few]))["decode"]
    assert (told.bound.name, told.bound.by_tokens) == ("memory", True)
    assert told.bound.confidence < 0.7
    assert summaries(line(rows, steps=[many]))["decode"].bound.name == "unknown"
    assert told.flops is None
    assert told.flops_known_share == 0.0


def test_one_unknown_token_count_makes_the_sum_unknown() -> None:
    rows = [gemm(0, 10, 0, 1, 9), gemm(20, 10, 1, 1, 9)]
    steps = [
        {"phase": "decode", "start": 0, "end": 10, "tokens": 1, "decode_tokens": 1},
        {"phase": "decode", "start": 20, "end": 30},
    ]
    assert summaries(line(rows, steps=steps))["decode"].decode_tokens is None


def test_the_decode_floor_is_weights_and_kv_over_the_bandwidth() -> None:
    found = floor.decode_floor(generation())
    assert found is not None
    assert found.weight_bytes == WEIGHTS
    assert found.kv_bytes == 10 * BYTES_PER_NS
    assert found.floor_ns == pytest.approx(50)
    assert found.floor_achievable_ns == pytest.approx(50 / 0.88)
    assert found.measured_ns == 80
    assert found.ratio == pytest.approx(1.6)
    assert found.busy_ns == 60


def test_a_matrix_kernel_of_unknown_size_leaves_no_floor() -> None:
    rows = [gemm(0, 10, 0, 1, 9), gemm(10, 10, 0, 1, 9, weight_bytes=np.nan)]
    found = floor.decode_floor(line(rows, steps=[{"phase": "decode", "start": 0, "end": 20, "tokens": 1}]))
    assert found is not None
    assert found.weight_bytes is None
    assert found.floor_ns is None
    assert "weights_unknown" in found.assumptions


def test_no_bandwidth_no_floor_and_no_decode_step_nothing() -> None:
    rows = [gemm(0, 10, 0, 1, 9)]
    prefill = [{"phase": "prefill", "start": 0, "end": 10}]
    assert floor.decode_floor(line(rows, steps=prefill)) is None
    bare = device().__class__(**{**device().__dict__, "overrides": type(device().overrides)()})
    found = floor.decode_floor(line(rows, steps=[{"phase": "decode", "start": 0, "end": 10}], info=bare))
    assert found is not None
    assert found.weight_bytes == WEIGHTS
    assert found.floor_ns is None


def test_the_slope_over_context_is_found_in_clean_steps_and_not_in_noise() -> None:
    def steps(durations: list[int]) -> Timeline:
        rows, found, at = [], [], 0
        for i, duration in enumerate(durations):
            rows.append(gemm(at, duration, i, 1, 9))
            found.append({"phase": "decode", "start": at, "end": at + duration, "context_sum": 1000 * (i + 1)})
            at += duration + 10
        return line(rows, steps=found)

    clean = floor.decode_floor(steps([1000 + 50 * i for i in range(10)]))
    assert clean is not None
    assert clean.ns_per_1k_context_measured == pytest.approx(50)
    noise = floor.decode_floor(steps([1000, 1400, 900, 1300, 1000, 1350, 950, 1300, 1020, 1010]))
    assert noise is not None
    assert noise.ns_per_1k_context_measured is None


def test_the_prefill_ideal_is_its_matrix_work_over_the_peak() -> None:
    found = floor.prefill_ideal(generation())
    assert found is not None
    assert found.ideal_ns == pytest.approx(80)
    assert found.measured_ns == 100


def test_one_batch_of_equal_requests_is_one_request() -> None:
    found = request.view(generation(decodes=3, sequences=2, prompt=8))
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (8, 4)
    assert found.ttft_ns == 100
    assert found.tpot_ns_p50 == 80
    assert found.decode_over_prefill_flops == pytest.approx(5.1 / 80)


def test_a_window_of_decode_steps_has_no_lengths() -> None:
    rows = [gemm(80 * i, 60, i, 5, 40) for i in range(3)]
    steps = [{"phase": "decode", "start": 80 * i, "end": 80 * i + 60, "tokens": 2, "sequences": 2} for i in range(3)]
    found = request.view(line(rows, steps=steps))
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.ttft_ns) == (None, None, None)
    assert found.tpot_ns_p50 == 80


def interrupted(sequences: tuple[float, float, float, float]) -> Timeline:
    """decode, prefill, decode, decode, with the given numbers of sequences."""
    rows = [gemm(0, 60, 0, 5, 40), gemm(80, 500, 1, 5, 40), gemm(600, 60, 2, 5, 40), gemm(680, 60, 3, 5, 40)]
    spans = [("decode", 0, 60), ("prefill", 80, 580), ("decode", 600, 660), ("decode", 680, 740)]
    steps = [
        {"phase": phase, "start": start, "end": end, "sequences": n}
        for (phase, start, end), n in zip(spans, sequences, strict=True)
    ]
    return line(rows, steps=steps)


def test_running_sequences_wait_for_a_prefill_that_joins_them() -> None:
    found = request.view(interrupted((2, 1, 3, 3)))
    assert found is not None
    # Two sequences wait 600 ns for their token, then three wait 80: percentiles are over the five tokens.
    assert found.tpot_ns_p50 == 80
    assert found.tpot_ns_p99 == pytest.approx(np.percentile([80, 80, 80, 600, 600], 99))


def decoding(served: list[int], contexts: list[int]) -> Timeline:
    """Decode steps of 60 ns, one every 100 ns, of so many sequences with these sums of contexts."""
    steps = [
        {"phase": "decode", "start": 100 * i, "end": 100 * i + 60, "sequences": n, "tokens": n, "context_sum": context}
        for i, (n, context) in enumerate(zip(served, contexts, strict=True))
    ]
    return line([gemm(100 * i, 60, i, 5, 40) for i in range(len(served))], steps=steps)


def test_a_request_that_takes_turns_gets_its_next_token_when_its_turn_comes() -> None:
    # Eight requests of 100 tokens in groups of three, three and two: each group is served every third step.
    contexts = [n * (101 + token) for token in range(3) for n in (3, 3, 2)]
    found = request.view(decoding([3, 3, 2] * 3, contexts))
    assert found is not None
    assert (found.tpot_ns_p50, found.tpot_ns_p99) == (300, 300)
    together = request.view(decoding([8] * 3, [8 * 101, 8 * 102, 8 * 103]))
    assert together is not None
    assert together.tpot_ns_p50 == 100


def test_a_mixed_step_gives_decoding_requests_their_token() -> None:
    # A chunk of 200 ns rides on the second step; one that decodes nothing gives no token.
    spans = [("decode", 0, 60, 2), ("mixed", 100, 300, 2), ("decode", 400, 460, 3), ("decode", 500, 560, 3)]
    steps = [
        {"phase": phase, "start": start, "end": end, "sequences": n if phase == "decode" else n + 1,
         "decode_sequences": n}
        for phase, start, end, n in spans
    ]  # fmt: skip
    rows = [gemm(start, end - start, i, 5, 40) for i, (_, start, end, _) in enumerate(spans)]
    found = request.view(line(rows, steps=steps))
    assert found is not None
    assert found.tpot_ns_p50 == pytest.approx(np.median([100, 100, 300, 300, 100, 100, 100]))
    assert found.tpot_ns_p99 == pytest.approx(np.percentile([100, 100, 300, 300, 100, 100, 100], 99))
    unsaid = request.view(line(rows, steps=[{**step, "decode_sequences": np.nan} for step in steps]))
    assert unsaid is not None
    assert unsaid.tpot_ns_p99 == 100


@pytest.mark.parametrize("sequences", [(1, 1, 1, 1), (np.nan, 1, 3, 3)])
def test_a_prefill_of_a_new_batch_is_no_token_time(sequences: tuple[float, float, float, float]) -> None:
    found = request.view(interrupted(sequences))
    assert found is not None
    assert found.tpot_ns_p99 == 80


def test_a_cut_step_leaves_the_length_of_the_request_unknown() -> None:
    timeline = generation(decodes=3)
    cut = timeline.steps.assign(complete=[True, True, True, False])
    found = request.view(type(timeline)(**{**timeline.__dict__, "steps": cut}))
    assert found is not None
    assert found.output_tokens is None


def test_verified_guesses_are_no_output_tokens() -> None:
    rows = [gemm(100 * i, 60, i, 5, 40) for i in range(4)]
    steps = [
        {"phase": "decode", "start": 100 * i, "end": 100 * i + 60, "tokens": 8, "decode_tokens": 8, "sequences": 2,
         "decode_sequences": 2}
        for i in range(4)
    ]  # fmt: skip
    decode = summaries(line(rows, steps=steps))["decode"]
    assert decode.decode_tokens == 32
    assert decode.output_tokens is None
    assert decode.tokens_per_s is None


def test_mixed_steps_count_both_kinds_of_tokens() -> None:
    steps = [{"phase": "mixed", "start": 0, "end": 100, "prefill_tokens": 30, "decode_tokens": 10}]
    mixed = summaries(line([gemm(0, 100, 0, 80, 30)], steps=steps))["mixed"]
    assert mixed.tokens_per_s == pytest.approx(40 / 100e-9)


def test_unrecorded_time_is_in_no_rate() -> None:
    hole = 50_000_000
    rows = [gemm(0, 100, 0, 80, 30), gemm(100 + hole, 100, 0, 80, 30, launch=0)]
    steps = [{"phase": "prefill", "start": 0, "end": 200 + hole, "prefill_tokens": 20}]
    timeline = line(rows, steps=steps, launches=[(50, 10)])
    prefill = summaries(timeline)["prefill"]
    assert prefill.duration_ns == 200 + hole
    assert prefill.tokens_per_s == pytest.approx(20 / 200e-9)
    assert prefill.compute_share == pytest.approx(160 / 200)
    assert prefill.step_ns == (200, 200, 200, 200)
    found = cost.of([prefill], 1, cost.Price(3.6, "EUR"))
    assert found.per_1m_input == pytest.approx(0.001 * 200e-9 / 20 * 1e6)
    assert found.idle_share == 0


def test_idle_time_of_unknown_cause_is_not_blamed_on_the_host() -> None:
    rows = [gemm(100 * i, 10, 0, 1, 9) for i in range(5)]
    steps = [{"phase": "decode", "start": 0, "end": 410, "tokens": 99}]
    assert summaries(line(rows, steps=steps))["decode"].bound.name == "unknown"


def test_kernels_far_from_both_roofs_bind_nothing() -> None:
    rows = [gemm(100 * i, 100, 0, 0.1, 2) for i in range(5)]
    steps = [{"phase": "decode", "start": 0, "end": 500, "tokens": 1}]
    assert summaries(line(rows, steps=steps))["decode"].bound.name == "mixed"


def test_the_cost_of_a_token_is_its_share_of_the_gpu_hour() -> None:
    found = cost.of(list(summaries(generation()).values()), 2, cost.Price(3.6, "EUR"))
    assert "tensor_parallel_assumed" in found.assumptions
    # 2 GPUs at 3.6 per hour are 0.002 per second.
    assert found.per_1m_input == pytest.approx(0.002 * 100e-9 / 16 * 1e6)
    assert found.per_1m_output == pytest.approx(0.002 * 240e-9 / 6 * 1e6)
    assert found.idle_share == pytest.approx(60 / 340)


def test_limits_from_the_user_make_an_unknown_gpu_a_known_one() -> None:
    info = device()
    assert info.gpu is None
    assert info.has_tensor_cores is True
    assert info.achievable_tflops == {"bf16": pytest.approx(80)}
    assert info.peak_tflops("bf16", True) == 100
    assert info.peak_tflops("bf16", False) is None, "a tensor-core peak says nothing of the vector units"
    assert info.peak_tflops("fp32", False) == 10
    assert info.peak_tflops("fp32", True) is None, "tensor cores compute fp32 in tf32, which was not given"


def test_the_test_device_is_what_the_numbers_above_assume() -> None:
    assert device().bandwidth_gbs == BANDWIDTH_GBS
    assert device().ridge_flop_per_byte["bf16"] == pytest.approx(100)


def test_what_a_phase_hardly_uses_is_ruled_out_and_nothing_where_its_work_is_unknown() -> None:
    found = verdict.decide(list(summaries(generation()).values()))
    assert found.phase is not None
    assert found.phase.phase == "decode"
    assert "more_compute" in found.ruled_out
    assert "larger_batch" not in found.ruled_out
    rows = [gemm(0, 100, 0, 0, 0, flops=np.nan, bytes=np.nan)]
    steps = [{"phase": "decode", "start": 0, "end": 100, "tokens": 8, "sequences": 8}]
    assert verdict.decide(list(summaries(line(rows, steps=steps)).values())).ruled_out == ()


def test_the_busy_time_of_overlapping_phases_stays_within_their_time() -> None:
    rows = [gemm(0, 100, 0, 80, 30), gemm(50, 100, 1, 5, 90, stream=8)]
    steps = [{"phase": "prefill", "start": 0, "end": 100}, {"phase": "decode", "start": 50, "end": 150}]
    found = summaries(line(rows, steps=steps)).values()
    assert all(phase.busy_ns <= phase.duration_ns for phase in found)
    assert sum(phase.busy_ns for phase in found) == 150


def test_a_second_opinion_that_differs_makes_the_bound_less_sure() -> None:
    found = list(summaries(generation()).values())
    agrees = forecast.Sensitivity(0.0, 0.5, 0.1, None, None)
    differs = forecast.Sensitivity(0.0, 0.1, 0.5, None, None)
    close = forecast.Sensitivity(0.0, 0.4, 0.5, None, None)
    sure = verdict.decide(found).confidence
    assert sure is not None
    assert verdict.decide(found, agrees).confidence == sure
    assert verdict.decide(found, close).confidence == sure
    doubted = verdict.decide(found, differs)
    assert (doubted.bound, doubted.confidence) == ("memory", pytest.approx(0.7 * sure, abs=0.006))
