"""What the GPU's own counters and the collector's block change in a report: named, ruled out, or left unsaid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from traceanalyzer import analyze, read_trace
from traceanalyzer.report.document import Report
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace import Trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    scenario = Scenario(output=4, model="qwen2.5-0.5b")
    (written,) = simulate(scenario, tmp_path_factory.mktemp("beside") / "trace.json", passes)
    return read_trace(written.trace)


def reported(trace: Trace, **sections: dict[str, Any]) -> Report:
    known = trace.metadata.collector or {}
    block = {**known, **{name: {**(known.get(name) or {}), **facts} for name, facts in sections.items()}}  # type: ignore[dict-item]
    return analyze([replace(trace, metadata=replace(trace.metadata, collector=block))])


def codes(report: Report) -> set[str]:
    return {note.code for note in report.quality}


CLOCK = {"samples": 20, "sm_mhz": 1400.0, "sm_mhz_max": 1410.0, "throttle_share": 0.0, "throttle_reasons": []}


def test_a_full_clock_and_a_gpu_of_ones_own_are_ruled_out(trace: Trace) -> None:
    report = reported(trace, gpu={**CLOCK, "other_processes": 0})
    assert "Throttling: the SM clock was at 1,400 of 1,410 MHz, and nothing held it down." in report.verdict.ruled_out
    assert any(line.startswith("Other processes: none") for line in report.verdict.ruled_out)
    assert not codes(report) & {"gpu_throttled", "gpu_shared"}


@pytest.mark.parametrize(
    "gpu",
    [{}, {"samples": 20}, {**CLOCK, "throttle_share": None, "throttle_reasons": None}, {**CLOCK, "sm_mhz": 900.0}],
)
def test_what_the_counters_do_not_say_is_not_ruled_out(trace: Trace, gpu: dict[str, Any]) -> None:
    report = reported(trace, gpu=gpu)
    assert not any("Throttling" in line or "Other processes" in line for line in report.verdict.ruled_out)


def test_a_clock_held_down_and_another_process_are_named(trace: Trace) -> None:
    held = {**CLOCK, "throttle_share": 0.34, "throttle_reasons": ["sw_power_cap"], "other_processes": 3}
    report = reported(trace, gpu=held)
    notes = {note.code: note for note in report.quality}
    assert "34 %, sw power cap" in notes["gpu_throttled"].message
    assert notes["gpu_shared"].count == 3
    assert not any("Throttling" in line or "Other processes" in line for line in report.verdict.ruled_out)


@pytest.mark.parametrize(("step", "said"), [(110.0, False), (120.0, True), (80.0, True), (None, False)])
def test_a_window_unlike_the_rest_is_named(trace: Trace, step: float | None, said: bool) -> None:
    report = reported(trace, overhead={"phase": "decode", "step_us": step, "unprofiled_step_us": 100.0})
    assert ("window_not_typical" in codes(report)) == said


@pytest.mark.parametrize(
    ("profiled", "unprofiled", "logged", "said"),
    [(9, 5, 195.0, False), (1, 40, 130.0, False), (9, 40, 130.0, True), (9, 40, 195.0, False), (9, 5, None, False)],
)
def test_a_few_slow_steps_do_not_make_a_window_unlike_the_rest(
    trace: Trace, profiled: int, unprofiled: int, logged: float | None, said: bool
) -> None:
    """The first steps after a start are slow; and a window that is like all steps of the log is typical."""
    cost = {"phase": "decode", "step_us": 193.0, "profiled_steps": profiled,
            "unprofiled_step_us": 1460.0, "unprofiled_steps": unprofiled}  # fmt: skip
    report = reported(trace, overhead=cost, steplog={"decode_period_p50_us": logged})
    assert ("window_not_typical" in codes(report)) == said
    known = report.profiling
    assert (known is not None and known.overhead_share is not None) == (profiled >= 8 and unprofiled >= 16)


def test_the_blocks_figures_reach_the_document(trace: Trace) -> None:
    report = reported(
        trace,
        overhead={"phase": "decode", "step_us": 110.0, "unprofiled_step_us": 100.0},
        service={"running": 4, "running_close": 6, "waiting": 0, "kv_used_share": 0.5, "source": "vllm"},
        steplog={"steps": 500, "seconds": 10.0, "decode_period_p50_us": 105.0, "tokens_in": 12},
        gpu={**CLOCK, "tensor_active": 0.06},
        model={"weight_bytes": 10**9, "kv_reserved_bytes": 5 * 10**9, "kv_used_bytes": 10**8},
        window={"engine": "vllm", "engine_version": "0.33.0", "recorder": "ondemand", "reason": "every"},
        sampling={"weight_s": 300.0, "mode": "sample"},
    )
    assert report.profiling is not None and report.profiling.overhead_share == pytest.approx(0.1)
    assert report.service is not None
    assert (report.service.running, report.service.waiting, report.service.kv_used_share) == (5.0, 0.0, 0.5)
    assert report.service.preemptions_per_s is None
    assert report.steplog is not None
    assert (report.steplog.steps, report.steplog.decode_period_us_p50, report.steplog.tokens_in) == (500, 105.0, 12)
    assert report.counters is not None and report.counters.tensor_active == 0.06
    assert report.memory is not None
    assert (report.memory.weight_bytes, report.memory.kv_reserved_bytes) == (10**9, 5 * 10**9)
    assert report.memory.kv_used_bytes == 10**8
    assert (report.run.engine, report.run.engine_version, report.run.sample_weight) == ("vLLM", "0.33.0", 300.0)
    assert report.recording is not None
    assert (report.recording.mode, report.recording.trigger, report.recording.windows_read) == ("sample", "every", 1)


def test_a_trace_without_them_has_none(trace: Trace) -> None:
    report = analyze([trace])
    assert (report.profiling, report.service, report.steplog, report.counters, report.recording) == (None,) * 5


def test_the_collector_names_the_gpu_where_the_trace_does_not(trace: Trace) -> None:
    bare = replace(trace, metadata=replace(trace.metadata, devices=()))
    report = reported(bare, gpu={"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_520_809_984})
    assert report.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert report.devices[0].gpu_id == "h100-sxm-80gb"


def test_a_step_that_the_windows_end_cut_is_not_counted(trace: Trace) -> None:
    report = reported(trace, window={"unfinished_steps": 1})
    assert [step.complete for step in report.steps] == [True, True, True, False]


def test_a_cut_step_is_counted_by_the_recorders_label_not_by_the_engines_in_it(trace: Trace) -> None:
    names = np.array(trace.strings, dtype=object)[trace.annotations["name"]]
    steps = trace.annotations[[str(name).startswith("ta.step[") for name in names]]
    inner = steps.assign(
        name=len(trace.strings), start_ns=steps["start_ns"] + 1000, duration_ns=steps["duration_ns"] - 2000
    )
    assert len(inner) and (inner["duration_ns"] > 0).all()
    nested = replace(
        trace, strings=(*trace.strings, "execute_context_0(0)_generation_1(1)"),
        annotations=pd.concat([trace.annotations, inner.astype(trace.annotations.dtypes)], ignore_index=True),
    )  # fmt: skip
    report = reported(nested, window={"unfinished_steps": 2})
    assert [step.complete for step in report.steps] == [True, True, False, False]


def test_a_lone_first_prefill_is_a_prefill_from_a_cold_start(trace: Trace) -> None:
    report = reported(trace, window={"recorder": "ondemand", "cold_start": True})
    assert "cold_start" in codes(report)
    assert report.recording is not None and report.recording.cold_start is True
