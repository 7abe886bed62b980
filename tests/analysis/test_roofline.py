"""Kernel rows: sums, rates, bounds and waste of hand-made kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.lines import BYTES_PER_NS, FLOPS_PER_NS, line
from traceanalyzer.analysis import roofline

TENSOR = {"tensor_core": 1, "dtype": "bf16", "category": "gemm", "source": "shapes"}


def row(start: int, duration: int, compute_ns: float, memory_ns: float, **more: object) -> dict[str, object]:
    work = {"flops": compute_ns * FLOPS_PER_NS, "bytes": memory_ns * BYTES_PER_NS}
    return {"start": start, "duration": duration, **TENSOR, **work, **more}


def test_rows_of_one_name_are_summed_and_what_exceeds_the_roof_is_wasted() -> None:
    found = roofline.by_kernel(line([row(0, 20_000, 9_000, 3_000), row(30_000, 30_000, 9_000, 3_000)])).iloc[0]
    assert found["count"] == 2
    assert found["duration_ns"] == 50_000
    assert found["wasted_ns"] == pytest.approx(50_000 - 18_000)
    assert found["arithmetic_intensity"] == pytest.approx(3 * FLOPS_PER_NS / BYTES_PER_NS)
    assert found["achieved_tflops"] == pytest.approx(100 * 18 / 50)
    assert found["achieved_gbs"] == pytest.approx(1000 * 6 / 50)
    assert found["bound"] == "compute"


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        (row(0, 40_000, 5_000, 30_000), "memory"),
        (row(0, 40_000, 30_000, 5_000), "compute"),
        (row(0, 3_000, 100, 200), "latency"),
        (row(0, 40_000, 100, 200), "memory"),
        (row(0, 40_000, 100, 200, flops=np.nan), "unknown"),
    ],
)
def test_the_bound_of_a_kernel(kernel: dict[str, object], bound: str) -> None:
    assert roofline.by_kernel(line([kernel])).iloc[0]["bound"] == bound


def test_a_name_with_one_unknown_execution_has_rates_but_no_totals() -> None:
    rows = [row(0, 10_000, 5_000, 1_000), row(20_000, 10_000, 0, 0, flops=np.nan, bytes=np.nan, source="none")]
    found = roofline.by_kernel(line(rows)).iloc[0]
    assert np.isnan(found["flops"])
    assert np.isnan(found["wasted_ns"])
    assert found["achieved_tflops"] == pytest.approx(50)
    assert found["source"] == "shapes"


def test_phases_and_names_stay_apart_and_no_time_is_lost() -> None:
    rows = [row(0, 10, 1, 1, step=0), row(20, 10, 1, 1, name=1, step=0), row(40, 10, 1, 1)]
    timeline = line(rows, steps=[{"phase": "decode", "start": 0, "end": 30}])
    found = roofline.by_kernel(timeline)
    assert sorted(zip(found["phase"], found["name"], strict=True)) == [("decode", 0), ("decode", 1), ("other", 0)]
    assert found["duration_ns"].sum() == 30


def test_pieces_of_one_call_count_once() -> None:
    rows = [row(0, 10, 1, 1, call=5), row(20, 10, 1, 1, call=5)]
    assert roofline.by_kernel(line(rows)).iloc[0]["count"] == 1


def test_a_kernel_that_a_cache_served_wasted_nothing() -> None:
    rows = [row(0, 10_000, 100, 30_000), row(20_000, 10_000, 100, 4_000)]
    found = roofline.by_kernel(line(rows)).iloc[0]
    assert found["wasted_ns"] == pytest.approx(6_000)
