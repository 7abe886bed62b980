"""The step-time model: what a step takes after a change, against figures computed by hand and published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.lines import BYTES_PER_NS, FLOPS_PER_NS, line
from traceanalyzer import read_trace
from traceanalyzer.analysis import forecast
from traceanalyzer.analysis.forecast import Change, StepModel, step_model
from traceanalyzer.analysis.forecast.model import QUANTISED_EFFECT, QUANTISED_EFFECT_4_BITS
from traceanalyzer.analysis.ledger import account
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.turns import Turns

GEMM = {"category": "gemm", "role": "g", "tensor_core": 1, "dtype": "bf16"}
ATTENTION = {"category": "attention", "role": "decode", "tensor_core": 1, "dtype": "bf16"}
DECODE = {"phase": "decode", "tokens": 1, "sequences": 1, "decode_tokens": 1, "decode_sequences": 1, "context_sum": 100}


def work(compute_ns: float, memory_ns: float, **parts: float) -> dict[str, float]:
    return {"flops": compute_ns * FLOPS_PER_NS, "bytes": memory_ns * BYTES_PER_NS,
            **{name: ns * BYTES_PER_NS for name, ns in parts.items()}}  # fmt: skip


def built(timeline: Timeline, phase: str = "decode") -> StepModel:
    model = step_model(timeline, account(timeline), phase)
    assert model is not None
    return model


def model(rows: list[Mapping[str, object]], idle: Mapping[str, float] | None = None, host_ns: float = 0.0) -> StepModel:
    """A model from plain rows; one kernel per row, no fixed time, nothing hidden, unless a row says so."""
    base = {"name": 0, "category": "gemm", "role": "g", "dtype": "bf16", "tensor_core": 1, "count": 1.0,
            "fixed_ns": 0.0, "hidden_ns": 0.0, **dict.fromkeys(forecast.model.WORK, np.nan)}  # fmt: skip
    return StepModel("decode", 1, pd.DataFrame([{**base, **row} for row in rows]), idle or {}, host_ns, 1, 1, 100, 1)


def two_steps() -> Timeline:
    """Two steps of 120 us, 140 us from start to start: a product bound by memory, attention, a kernel nobody knows."""
    rows: list[dict[str, object]] = []
    for step, start in enumerate((0, 140_000)):
        rows += [
            {"start": start, "duration": 90_000, **GEMM, **work(500, 80_000, weight_bytes=70_000), "step": step},
            {"start": start + 90_000, "duration": 20_000, "name": 1, **ATTENTION,
             **work(100, 15_000, kv_bytes=12_000), "step": step},
            {"start": start + 110_000, "duration": 10_000, "name": 2, "step": step},
        ]  # fmt: skip
    steps = [{**DECODE, "start": s, "end": s + 120_000} for s in (0, 140_000)]
    return line(rows, steps=steps)


def test_the_parts_add_up_to_the_mean_of_the_measured_times() -> None:
    found = built(two_steps())
    assert found.step_ns == pytest.approx((140_000 + 120_000) / 2)  # a period, and the duration of the last step
    assert found.busy_ns == pytest.approx(120_000)
    assert dict(found.idle_ns) == {"idle_unknown": pytest.approx(10_000)}
    assert found.weight_bytes == pytest.approx(70_000 * BYTES_PER_NS)
    assert found.kv_bytes == pytest.approx(12_000 * BYTES_PER_NS)
    assert found.tokens_per_s == pytest.approx(1e9 / 130_000)
    assert found.known_share == pytest.approx(110 / 120)


def test_kernels_that_overlap_share_the_time() -> None:
    rows = [{"start": 0, "duration": 100, "step": 0}, {"start": 50, "duration": 100, "name": 1, "step": 0}]
    found = built(line(rows, steps=[{**DECODE, "start": 0, "end": 150}])).rows.set_index("name")
    assert found["duration_ns"].to_dict() == {0: 75.0, 1: 75.0}


def test_what_runs_past_the_start_of_the_next_step_is_cut_there() -> None:
    rows = [{"start": 0, "duration": 120, "step": 0}, {"start": 100, "duration": 50, "name": 1, "step": 1}]
    steps = [{**DECODE, "start": 0, "end": 120}, {**DECODE, "start": 100, "end": 150}]
    found = built(line(rows, steps=steps))
    assert found.step_ns == pytest.approx((100 + 50) / 2)
    # 100 alone, then 20 shared by two; the second kernel has 40 ns of its own time besides
    assert found.rows.set_index("name")["duration_ns"].to_dict() == {0: 110 / 2, 1: 40 / 2}


def test_a_phase_without_complete_steps_has_no_model() -> None:
    timeline = line(
        [{"start": 0, "duration": 10, "step": 0}], steps=[{**DECODE, "start": 0, "end": 10, "complete": False}]
    )
    assert step_model(timeline, account(timeline), "decode") is None
    assert step_model(two_steps(), account(two_steps()), "prefill") is None


def test_the_time_above_the_fixed_part_follows_the_roof() -> None:
    base = model([{"duration_ns": 100.0, "fixed_ns": 10.0, "compute_ns": 30.0, "memory_ns": 60.0}])
    faster = base.with_device(bandwidth=2.0)  # max(30, 30) / 60 of the 90 ns above the fixed part
    assert faster.step_ns == pytest.approx(10 + 90 / 2)
    assert base.with_device(bandwidth=4.0).step_ns == pytest.approx(10 + 90 / 2)  # compute takes over
    assert faster.with_device(compute=2.0).step_ns == pytest.approx(10 + 45)  # memory is as long now


def test_a_kernel_far_from_its_roofs_gains_only_near_them() -> None:
    base = model([{"duration_ns": 100.0, "compute_ns": 1.0, "memory_ns": 10.0}])
    assert base.with_device(bandwidth=2.0).step_ns == pytest.approx(100 - 3 * 10 / 2)


def test_unknown_work_does_not_change() -> None:
    base = model([{"duration_ns": 100.0, "memory_ns": 60.0}])
    assert base.with_device(compute=2.0, bandwidth=2.0).step_ns == 100.0


def test_changes_follow_one_another_and_are_never_summed() -> None:
    base = model([{"duration_ns": 100.0, "compute_ns": 0.0, "memory_ns": 100.0}], {"idle_sync": 100.0})
    halved = base.scaled(np.array([True]), 0.5)
    again = halved.scaled(np.array([True]), 0.5).without_idle("idle_sync", left=0.1)
    assert again.step_ns == pytest.approx(25 + 10)
    found = again.against(base)
    assert found.saving_ns == pytest.approx(165)
    assert found.saving_share == pytest.approx(165 / 200)
    assert found.speedup == pytest.approx(200 / 35)
    assert found.throughput_gain == pytest.approx(200 / 35)


def test_rows_can_go_and_masks_stay_valid() -> None:
    base = model([{"duration_ns": 30.0}, {"name": 1, "duration_ns": 70.0}])
    left = base.without(np.array([False, True]))
    assert left.step_ns == 30.0
    assert left.scaled(np.array([True, False]), 2.0).step_ns == 60.0
    assert base.without(np.array([False, True]), 0.5).step_ns == 65.0


def test_a_late_host_takes_back_what_its_kernels_save() -> None:
    hidden = {"duration_ns": 40.0, "hidden_ns": 40.0, "compute_ns": 0.0, "memory_ns": 40.0}
    exposed = {"name": 1, "duration_ns": 50.0, "compute_ns": 0.0, "memory_ns": 50.0}
    base = model([hidden, exposed], {"idle_launch": 70.0}, host_ns=100.0)
    assert base.step_ns == 160.0
    faster = base.with_device(bandwidth=2.0)
    assert faster.step_ns == pytest.approx(100 + 25 + 10)  # the host's 100, 10 of waiting elsewhere
    assert faster.idle_ns["idle_launch"] == pytest.approx(90)
    assert faster.without_idle("idle_launch").step_ns == pytest.approx(20 + 25)
    longer = base.scaled(np.array([True, False]), 4.0)
    assert longer.step_ns == pytest.approx(160 + 50 + 10)  # now the device is the later one
    assert base.without(np.array([True, False])).step_ns == pytest.approx(50 + 10)


def test_only_gaps_inside_a_step_before_a_late_launch_hide_kernels() -> None:
    rows = [
        {"start": 0, "duration": 10, "step": 0, "launch": 0},
        {"start": 40, "duration": 10, "name": 1, "step": 0, "launch": 1},
        {"start": 100, "duration": 10, "step": 1, "launch": 2},
        {"start": 130, "duration": 10, "name": 1, "step": 1, "launch": 3},
    ]
    steps = [{**DECODE, "start": 0, "end": 50}, {**DECODE, "start": 100, "end": 140}]
    found = built(line(rows, steps=steps, launches=[(0, 1), (30, 5), (90, 5), (105, 1)]))
    assert found.rows.set_index("name")["hidden_ns"].to_dict() == {0: 5.0, 1: 0.0}
    assert found.host_ns == pytest.approx((10 + 30) / 2)


def gpt_fast(bandwidth: float = 1.7) -> StepModel:
    """Llama-2-7B in bf16 on an A100 80GB: 13.32 GB and 9.53 ms a token (gpt-fast README, 104.9 tokens/s).

    Its products run at the 1.7 TB/s that the same README says the card reaches; the rest of the step is other kernels.
    225 products a step: 32 layers of 7, and the lm_head.
    """
    products = 13.32e9 / bandwidth / 1e3
    other = 9.53e6 - products
    return model([
        {"duration_ns": products, "count": 225.0, "fixed_ns": 225 * 2_000.0, "compute_ns": 13.32e9 / 312e3,
         "memory_ns": 13.32e9 / 2_039.0, "bytes": 13.32e9, "weight_bytes": 13.32e9},
        {"duration_ns": other, "category": "elementwise"},
    ])  # fmt: skip


@pytest.mark.parametrize(("size", "measured_ms"), [(6.87e9, 6.43), (4.38e9, 5.08)])
def test_quantised_weights_as_gpt_fast_measured_them(size: float, measured_ms: float) -> None:
    base = gpt_fast()
    assert base.step_ns == pytest.approx(9.53e6)
    assert base.with_weights(size / 13.32e9).step_ns / 1e6 == pytest.approx(measured_ms, rel=0.10)
    with_unpacking = base.with_weights(size / 13.32e9, QUANTISED_EFFECT)
    assert with_unpacking.step_ns / 1e6 == pytest.approx(measured_ms, rel=0.02)


def test_less_is_promised_for_4_bits_than_gpt_fast_measured() -> None:
    step_ms = gpt_fast().with_weights(4.38e9 / 13.32e9, QUANTISED_EFFECT_4_BITS).step_ns / 1e6
    assert 5.08 < step_ms < 1.10 * 5.08


def test_sensitivities_of_a_memory_bound_step() -> None:
    found = forecast.sensitivity(built(two_steps()), has_launches=True)
    fixed = 2_000  # the shortest kernel takes 10 us: the cap holds
    assert found.compute_2x == 0.0
    assert found.bandwidth_2x == pytest.approx(((90_000 - fixed) / 2 + (20_000 - fixed) / 2) / 130_000)
    assert found.launches_free == 0.0
    assert found.weights_half == pytest.approx((90_000 - fixed) * (70 / 80) / 2 / 130_000)
    assert found.kv_half == pytest.approx((20_000 - fixed) * (12 / 15) / 2 / 130_000)
    assert found.largest == "memory"


def test_what_is_not_known_has_no_sensitivity() -> None:
    timeline = line([{"start": 0, "duration": 10, "step": 0}], steps=[{**DECODE, "start": 0, "end": 10}])
    found = forecast.sensitivity(built(timeline), has_launches=False)
    assert found == forecast.Sensitivity(None, None, None, None, None)
    assert found.largest is None


def test_with_more_sequences_weights_stay_and_the_cache_grows() -> None:
    base = model([
        {"duration_ns": 80.0, "compute_ns": 4.0, "memory_ns": 80.0, "bytes": 80.0, "weight_bytes": 70.0, "flops": 4.0},
        {"name": 1, "category": "attention", "duration_ns": 20.0, "compute_ns": 1.0, "memory_ns": 20.0, "bytes": 20.0,
         "kv_bytes": 20.0, "flops": 1.0},
    ])  # fmt: skip
    four = forecast.with_sequences(base, 4.0)
    assert four.step_ns == pytest.approx(70 + 10 * 4 + 20 * 4)
    assert four.sequences == 4
    assert four.tokens_per_s == pytest.approx(4 / 190 * 1e9)
    # at 40 times the tokens: math 160 against 70 + 400 of traffic; the products stay bound by memory
    assert forecast.with_sequences(base, 40.0).step_ns == pytest.approx(70 + 400 + 800)
    assert forecast.ridge_batch(base) == pytest.approx(70 / 4)


def test_a_product_of_one_row_moves_to_tensor_cores_in_a_batch() -> None:
    row = {"duration_ns": 80.0, "compute_ns": 40.0, "tensor_compute_ns": 1.0, "memory_ns": 80.0, "bytes": 80.0,
           "weight_bytes": 80.0, "tensor_core": 0, "flops": 1.0}  # fmt: skip
    assert forecast.with_sequences(model([row]), 8.0).step_ns == pytest.approx(80)


@pytest.mark.parametrize(("room", "cap", "reason"), [(None, 140, "ridge"), (12, 12, "kv_memory"), (1000, 140, "ridge")])
def test_batching_ends_at_the_ridge_or_where_memory_is_full(room: int | None, cap: int, reason: str) -> None:
    found = forecast.batching(built(two_steps()), room)
    assert found is not None
    assert (found.cap, found.cap_reason) == (cap, reason)  # 70 us of weights against 500 ns of math
    assert [point.sequences for point in found.points][:3] == [1, 2, 4]
    assert found.points[-1].sequences == cap
    assert found.efficiency == pytest.approx(1.0)
    rates = [point.tokens_per_s for point in found.points]
    assert rates == sorted(rates)


def test_sequences_that_take_turns_are_worth_one_where_a_step_serves_one() -> None:
    found = forecast.batching(built(two_steps()), None, Turns(groups=4, sequences=4))
    assert found is not None
    assert found.streams == 4
    assert found.efficiency == pytest.approx(0.25)
    assert found.effective_batch == pytest.approx(1.0)
    alone = forecast.batching(built(two_steps()), None, Turns(groups=1, sequences=1))
    assert alone is not None
    assert (alone.streams, alone.efficiency) == (1, pytest.approx(1.0))


def test_batching_needs_sequences_and_work() -> None:
    timeline = line([{"start": 0, "duration": 10, "step": 0}], steps=[{**DECODE, "start": 0, "end": 10}])
    assert forecast.batching(built(timeline), None) is None


def test_idle_time_and_times_can_be_given() -> None:
    base = model([{"duration_ns": 100.0}], {"idle_sync": 10.0, "idle_host": 5.0})
    changed = base.apply(Change(np.array([50.0]), {"idle_sync": 0.0}))
    assert changed.step_ns == 55.0
    assert dict(changed.idle_ns) == {"idle_host": 5.0}


def test_what_comes_before_a_late_launch_is_hidden_unless_the_host_waits_in_between() -> None:
    rows = [
        {"start": 0, "duration": 10, "step": 0, "launch": 0},
        {"start": 12, "duration": 10, "name": 1, "step": 0, "launch": 1},  # queued: 2 ns after the one before
        {"start": 50, "duration": 10, "name": 2, "step": 0, "launch": 2},  # launched late
        {"start": 80, "duration": 10, "name": 3, "step": 0, "launch": 4},  # launched after the host had waited
    ]
    calls = [(0, 1), (5, 1), (45, 1), (50, 14), (70, 1)]
    timeline = line(rows, steps=[{**DECODE, "start": 0, "end": 90}], launches=calls)
    launches = timeline.trace.launches.assign(name=[0, 0, 0, 1, 0])
    trace = replace(timeline.trace, launches=launches, strings=("cudaLaunchKernel", "cudaStreamSynchronize"))
    found = built(replace(timeline, trace=trace))
    assert found.rows.set_index("name")["hidden_ns"].to_dict() == {0: 10, 1: 10, 2: 0, 3: 0}
    assert found.host_ns == pytest.approx(20 + 28)
    assert found.own_host_ns == pytest.approx(71 - 14)  # from the first call to the last one's return, less the wait
    assert found.late_latency_ns == pytest.approx(2)  # one late gap, and 2 ns from kernel to kernel


def test_a_step_takes_at_least_the_hosts_own_time() -> None:
    base = model([{"duration_ns": 100.0, "compute_ns": 0.0, "memory_ns": 100.0}], {"idle_host": 20.0})
    base = replace(base, own_host_ns=80.0)
    half = base.with_device(bandwidth=2.0)
    assert half.step_ns == pytest.approx(80)  # 50 of kernels, 20 of the host between steps, 10 of waiting for launches
    assert half.with_device(bandwidth=0.5).step_ns == pytest.approx(120)
    assert half.without_idle("idle_host").step_ns == pytest.approx(60)
    assert half.without_idle("idle_launch").step_ns == pytest.approx(70)
    assert half.apply(Change(half.durations, {"idle_host": 5.0})).step_ns == pytest.approx(65)


def test_free_launches_leave_the_latency_from_kernel_to_kernel() -> None:
    base = replace(model([{"duration_ns": 50.0}], {"idle_launch": 40.0}), late_latency_ns=6.0)
    assert base.without_idle("idle_launch").step_ns == pytest.approx(50 + 6)
    assert base.without_idle("idle_launch", left=0.5).step_ns == pytest.approx(50 + 20 + 3)


def test_evenly_drawn_experts_are_read_by_the_tokens_that_take_them() -> None:
    """128 experts of which a token takes 8: 8 tokens read 51.6 of them, 32 read 111.8 (the method's own figures)."""
    experts = {"category": "moe", "duration_ns": 51.6, "compute_ns": 0.0, "memory_ns": 51.6, "bytes": 51.6,
               "weight_bytes": 51.6, "weight_bytes_min": 8.0}  # fmt: skip
    base = replace(model([experts]), tokens=8.0, sequences=8.0)
    assert forecast.with_sequences(base, 4.0).step_ns == pytest.approx(111.8, rel=0.01)
    unknown = replace(model([experts | {"weight_bytes_min": np.nan}]), tokens=8.0)
    assert forecast.with_sequences(unknown, 4.0).step_ns == pytest.approx(4 * 51.6)


def test_real_steps_add_up_and_no_change_makes_them_absurd(traces: Path, expected: dict[str, dict[str, Any]]) -> None:
    seen = 0
    for name, facts in expected.items():
        if facts.get("exit") != 0 or facts.get("phase") not in ("prefill", "decode"):
            continue
        main = analyze([read_trace(traces / name)]).main
        line = main.timeline
        for phase in main.phases:
            model = step_model(line, main.ledger, phase.phase)
            if model is None:
                continue
            seen += 1
            steps = line.complete_steps[line.complete_steps["phase"] == phase.phase]
            wall = steps["period_ns"].fillna(steps["duration_ns"]).mean()
            assert model.step_ns == pytest.approx(wall), name
            assert model.rows["hidden_ns"].sum() <= model.busy_ns * (1 + 1e-9)
            found = forecast.sensitivity(model, has_launches=True)
            for share in vars(found).values():
                assert share is None or 0.0 <= share < 1.0, name
            faster = model.with_device(compute=1e6, bandwidth=1e6).without_idle(*model.idle_ns)
            assert 0.0 < faster.step_ns <= model.step_ns
    assert seen >= 4
