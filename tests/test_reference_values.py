"""The whole line, from file to report, against independent reference values on real traces."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED
from traceanalyzer import analyze, read_trace
from traceanalyzer.report.document import Report

pytestmark = pytest.mark.usefixtures("without_hta")

ORACLE = SHARED / "oracle" / "busy-idle.json"


def reference_names() -> list[str]:
    """The traces with reference times; where there are none, one name whose test says why it is skipped."""
    return sorted(json.loads(ORACLE.read_text())) if ORACLE.is_file() else ["busy-idle.json"]


@functools.cache
def report_on(traces: Path, name: str) -> Report:
    return analyze([read_trace(traces / name)])


def nanoseconds(us: float) -> int:
    return round(us * 1000)


def plain_sum_ns(traces: Path, name: str) -> int:
    """Durations of all kernels, copies and fills as the file has them: the reader's table, without the analysis."""
    return int(read_trace(traces / name).kernels["duration_ns"].sum())


@pytest.mark.parametrize("name", reference_names())
def test_times_to_the_nanosecond(name: str, traces: Path, oracle: Path) -> None:
    reference: dict[str, dict[str, Any]] = json.loads((oracle / "busy-idle.json").read_text())[name]
    report = report_on(traces, name)
    assert {str(device.device) for device in report.devices} == set(reference)
    for device in report.devices:
        truth = reference[str(device.device)]
        assert nanoseconds(device.span_us) == nanoseconds(truth["span_us"])
        assert nanoseconds(device.busy_us) == nanoseconds(truth["busy_us"])
        assert nanoseconds(device.kernel_us) == nanoseconds(truth["kernel_busy_us"])
        rows = [row for row in report.ledger if row.device == device.device]
        assert sum(nanoseconds(row.us) for row in rows) == nanoseconds(truth["span_us"])
        idle = sum(nanoseconds(row.us) for row in rows if row.group == "idle")
        assert idle == nanoseconds(truth["idle_us"])
        for phase in (p for p in report.phases if p.device == device.device):
            in_phase = [row for row in rows if row.phase == phase.phase]
            assert nanoseconds(phase.duration_us) == sum(nanoseconds(row.us) for row in in_phase)
    kernels = sum(nanoseconds(kernel.total_us) for kernel in report.kernels)
    assert kernels == plain_sum_ns(traces, name)


def shares(report: Report) -> dict[str, float]:
    whole = report.span.duration_us
    totals: dict[str, float] = {}
    for row in report.ledger:
        key = "idle" if row.group == "idle" else row.bucket
        totals[key] = totals.get(key, 0.0) + row.us / whole
    return totals


def test_the_ledger_of_a_prefill_forward(traces: Path) -> None:
    report = report_on(traces, "h100-hf-qwen1.5-forward.json.gz")
    found = shares(report)
    assert report.span.duration_us == pytest.approx(49_652.832)
    assert found["idle"] == pytest.approx(0.0807, abs=5e-5)
    assert found["no_tensor_core"] == pytest.approx(0.5798, abs=5e-5)
    assert found["memcpy"] == pytest.approx(0.0043, abs=5e-5)
    assert found["tensor_core_useful"] >= 0.117
    assert "decode" not in {phase.phase for phase in report.phases}
    assert report.decode_floor is None


def test_the_matrix_products_of_a_serving_prefill(traces: Path) -> None:
    report = report_on(traces, "mi300x-sglang-qwen3-8b-prefill.json.gz")
    gemms = [kernel for kernel in report.kernels if kernel.category == "gemm" and kernel.flops is not None]
    flops = sum(kernel.flops or 0.0 for kernel in gemms)
    assert flops == pytest.approx(2.134e14, rel=5e-4)
    assert flops / sum(kernel.total_us for kernel in gemms) / 1e6 == pytest.approx(508, rel=2e-3)
    artefact = sum(row.us for row in report.ledger if row.bucket == "idle_artefact")
    assert artefact == pytest.approx(493_280, abs=10)
    assert report.span.gpu_util is not None
    assert report.span.gpu_util > 0.99
    (prefill,) = report.phases
    assert prefill.tokens_per_s == pytest.approx(15_360 / (0.987289 - 0.493284), rel=1e-4)
    assert report.request is None or report.request.ttft_us is None


def test_utilisation_says_nothing_of_throughput(traces: Path) -> None:
    """The lesson in one real trace: GPU-Util 99.8 %, while a decode step of 32 tokens uses a quarter of the card."""
    report = report_on(traces, "mi300x-vllm-decode-full-graph.json.gz")
    assert report.span.gpu_util == pytest.approx(0.9936, abs=5e-4)
    assert report.verdict.bound == "mixed"
    (decode,) = [phase for phase in report.phases if phase.phase == "decode"]
    assert decode.flops_known_share is not None
    assert decode.flops_known_share > 0.9, "the kernels of a graph replay carry no shapes; the model's description does"
    assert report.decode_floor is not None
    assert report.decode_floor.ratio == pytest.approx(4.09, abs=0.05)


def test_a_gpu_without_tensor_cores_has_no_idle_tensor_cores(traces: Path) -> None:
    report = report_on(traces, "gp100-no-tensor-cores.json.gz")
    assert report.devices[0].has_tensor_cores is False
    assert report.span.tensor_core_idle_us_max is None
    assert not [row for row in report.ledger if row.bucket.startswith("tensor_core")]
