"""One block out of those of several windows: means by weight, totals once, and the last word where that is best."""

from __future__ import annotations

from typing import Any

import pytest

from traceanalyzer.trace.merged import merged_blocks


def merged(name: str, *sections: dict[str, Any]) -> dict[str, Any]:
    found = merged_blocks([{"schema": 1, name: section} for section in sections])
    assert found is not None
    section = found[name]
    assert isinstance(section, dict)
    return section


def test_nothing_gives_nothing() -> None:
    assert merged_blocks([]) is None
    assert merged_blocks([{"schema": 1}, {"schema": 1}]) == {"schema": 1}


def test_counters_are_weighted_by_time() -> None:
    found = merged(
        "gpu",
        {"name": "H100", "util_gpu": 0.9, "sm_mhz_max": 1980, "samples": 10, "seconds": 1.0, "other_processes": 0},
        {"name": "H100", "util_gpu": 0.5, "sm_mhz_max": 1980, "samples": 30, "seconds": 3.0, "other_processes": 2,
         "tensor_active": 0.1},
    )  # fmt: skip
    assert found["util_gpu"] == pytest.approx((0.9 + 3 * 0.5) / 4)
    assert found["tensor_active"] == pytest.approx(0.1)
    assert (found["samples"], found["seconds"]) == (40, 4)
    assert (found["other_processes"], found["sm_mhz_max"], found["name"]) == (2, 1980, "H100")


def test_reasons_keep_their_own_shares() -> None:
    found = merged(
        "gpu",
        {"seconds": 1.0, "throttle_share": 0.5, "throttle_reasons": ["power"], "throttle_shares": [0.5]},
        {"seconds": 1.0, "throttle_share": 0.9, "throttle_reasons": ["heat", "power"], "throttle_shares": [0.8, 0.1]},
        {"seconds": 2.0, "throttle_share": 0.0, "throttle_reasons": []},
    )
    assert found["throttle_share"] == pytest.approx((0.5 + 0.9) / 4)
    assert found["throttle_reasons"] == ["heat", "power"]
    assert found["throttle_shares"] == pytest.approx([0.2, 0.15])


def test_unknown_throttling_stays_unknown() -> None:
    assert not {"throttle_reasons", "throttle_shares"} & set(merged("gpu", {"seconds": 1.0}, {"seconds": 1.0}))


def test_the_cost_of_profiling_is_that_of_one_phase() -> None:
    found = merged(
        "overhead",
        {"phase": "decode", "step_us": 100.0, "profiled_steps": 10, "unprofiled_step_us": 90.0, "unprofiled_steps": 5},
        {"phase": "prefill", "step_us": 9000.0, "profiled_steps": 1},
        {"phase": "decode", "step_us": 130.0, "profiled_steps": 20, "unprofiled_step_us": 95.0, "unprofiled_steps": 50},
    )
    assert found["step_us"] == pytest.approx(120.0)
    assert found["profiled_steps"] == 30
    assert (found["unprofiled_step_us"], found["unprofiled_steps"], found["phase"]) == (95.0, 50, "decode")


def test_the_service_is_averaged_and_its_last_word_kept() -> None:
    found = merged("service", {"running": 2, "running_close": 4, "source": "vllm"}, {"running": 4, "running_close": 6})
    assert (found["running"], found["running_close"]) == (3, 6)


def test_the_window_adds_up_and_takes_the_worse_answer() -> None:
    found = merged(
        "window",
        {"number": 4, "steps": 32, "reason": "every", "stable_batch": True, "cold_start": True, "rank": 1},
        {"number": 5, "steps": 30, "reason": "latency", "stable_batch": False, "cold_start": False, "rank": 1},
    )
    assert (found["steps"], found["reason"], found["rank"]) == (62, "every, latency", 1)
    assert (found["stable_batch"], found["cold_start"]) == (False, True)


def test_weights_add_up_and_the_log_is_the_last_one() -> None:
    assert merged("sampling", {"weight_s": 300.0, "windows_taken": 1}, {"weight_s": 310.0, "windows_taken": 2}) == {
        "weight_s": 610.0, "windows_taken": 2,
    }  # fmt: skip
    assert merged("steplog", {"steps": 5}, {"steps": 9}) == {"steps": 9}
    assert merged("model", {"name": "m", "kv_used_bytes": 1}, {}) == {"name": "m", "kv_used_bytes": 1}


@pytest.mark.parametrize("odd", [{"gpu": [1]}, {"overhead": 3}, {"window": "x"}, {"sampling": None}, {"service": []}])
def test_sections_of_another_kind_are_left_alone(odd: dict[str, Any]) -> None:
    assert merged_blocks([{"schema": 1, **odd}, {"schema": 1, **odd}]) == {"schema": 1, **odd}


@pytest.mark.parametrize("value", ["x", None, True, [1, "a", None], -1, 2**62, 1e308])
def test_odd_values_do_not_stop_it(value: Any) -> None:
    keys = (
        "util_gpu", "seconds", "throttle_reasons", "throttle_shares", "throttle_share", "other_processes", "step_us",
        "profiled_steps", "unprofiled_step_us", "phase", "running", "weight_s", "steps", "reason", "stable_batch",
    )  # fmt: skip
    block = {
        name: dict.fromkeys(keys, value) for name in ("gpu", "overhead", "service", "sampling", "window", "steplog")
    }
    assert merged_blocks([block, block]) is not None
