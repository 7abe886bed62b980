"""Every real trace against what reading it established: phase of most time, steps, tokens, sequences, layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traceanalyzer.analysis import activity, kernels, work
from traceanalyzer.analysis.steps import NOT_EXECUTED, Steps, find
from traceanalyzer.trace import read_trace

TRAINING = {
    "h800-deepseek-v3-training.json.gz",
    "v100-resnet50-torch1.9.pt.trace.json.gz",
    "v100-dlrm-training-rank0.pt.trace.json.gz",
    "v100-cuda-graphs-training.json.gz",
    "v100-nanosecond-unit.pt.trace.json.gz",
    "v100-compute-properties.json",
    "gp100-no-tensor-cores.json.gz",
}


def analysed(path: Any) -> tuple[Steps, np.ndarray]:
    trace = read_trace(path)
    what = activity.build(trace)
    steps = find(trace, what, work.measure(trace, what, kernels.classes(trace, what)))
    return steps, what.table["duration_ns"].to_numpy()


def phase_times(steps: Steps, duration: np.ndarray) -> dict[str, int]:
    named = np.array([*steps.table["phase"].tolist(), "other"], object)[steps.activity_step]
    return {str(phase): int(duration[named == phase].sum()) for phase in np.unique(named.astype(str))}


def entry(expected: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    found = expected[name]
    return expected[found["same_as"]] if "same_as" in found else found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trace_name" in metafunc.fixturenames:
        metafunc.parametrize("trace_name", ANALYSABLE)


ANALYSABLE = [
    "a100-event-sync-three-streams.json.gz", "a100-matmul.json", "a100-one-triton-kernel.json.gz",
    "a100-switch-transformer-128tok.json.gz", "a100-switch-transformer-m10.json.gz", "a10g-inductor.json",
    "amd-tall-skinny-gemm-no-correlation.json.gz", "b200-vllm-eager-prefill.json.gz",
    "broken-control-and-non-utf8.json", "broken-inf-nan.json", "broken-truncated.json", "broken-truncated.json.gz",
    "cpu-switch-transformer.json.gz",
    "gp100-no-tensor-cores.json.gz", "h100-hf-qwen1.5-forward.json.gz", "h800-deepseek-v3-training.json.gz",
    "mi300x-inductor-layer.json.gz", "mi300x-sglang-graph-capture-bs32.json.gz",
    "mi300x-sglang-qwen3-8b-prefill.json.gz", "mi300x-vllm-decode-full-graph.json.gz",
    "mi300x-vllm-graph-capture.json.gz", "odd-bom-crlf.json", "odd-top-level-list.json", "odd-two-member.json.gz",
    "rtx4080-nanovllm-decode-0.json", "rtx4080-nanovllm-decode-10.json", "rtx4080-nanovllm-decode-100.json",
    "rtx4080-nanovllm-decode-11.json", "rtx4080-nanovllm-decode-60.json.zst", "rtx4080-nanovllm-forward-100.json",
    "rtx4080-nanovllm-forward-5.json", "v100-compute-properties.json", "v100-cuda-graphs-training.json.gz",
    "v100-dlrm-training-rank0.pt.trace.json.gz", "v100-nanosecond-unit.pt.trace.json.gz",
    "v100-resnet50-torch1.9.pt.trace.json.gz",
]  # fmt: skip


def test_every_trace_that_can_be_analysed_is_here(expected):
    unanalysed = {name for name, e in expected.items() if e["exit"] == 2}
    assert set(ANALYSABLE) == set(expected) - unanalysed


def test_phase_steps_and_counts(traces, expected, trace_name):
    want = entry(expected, trace_name)
    steps, duration = analysed(traces / trace_name)
    table = steps.table
    if want.get("phase") is not None:
        times = phase_times(steps, duration)
        allowed = [want["phase"]] if isinstance(want["phase"], str) else want["phase"]
        assert max(times, key=lambda phase: times[phase]) in allowed
    if want.get("steps") is not None:
        assert int((~table["phase"].isin(NOT_EXECUTED)).sum()) == want["steps"]
    for column in ("tokens", "sequences", "context_sum"):
        if want.get(column) is not None:
            assert table[column].tolist() == [want[column]], column
    if want.get("layers") is not None:
        assert steps.facts.layers == want["layers"]
    assert (steps.facts.workload == "training") == (trace_name in TRAINING)
    assert all(evidence for evidence in table["evidence"])


def test_the_first_kernels_of_the_h100_trace_belong_to_no_step(traces):
    trace = read_trace(traces / "h100-hf-qwen1.5-forward.json.gz")
    what = activity.build(trace)
    steps = find(trace, what, work.measure(trace, what, kernels.classes(trace, what)))
    unlaunched = (what.table["launch"] < 0).to_numpy()
    kernel = (what.table["kind"] == 0).to_numpy()
    assert int((unlaunched & kernel).sum()) == 436
    assert (steps.activity_step[unlaunched] == -1).all()
    assert (steps.activity_step[~unlaunched] == 0).all()
    assert steps.table["complete"].tolist() == [True]


@pytest.mark.parametrize(
    "name",
    ["rtx4080-nanovllm-forward-100.json", "rtx4080-nanovllm-forward-5.json", "rtx4080-nanovllm-decode-11.json"],
)
def test_fragments_are_never_sure(traces, name):
    steps, _ = analysed(traces / name)
    assert (steps.table["confidence"] < 0.75).all()
    assert "fragment: no layer GEMM" in steps.table["evidence"].iloc[0]


@pytest.mark.parametrize(
    ("name", "engine", "mode", "workload"),
    [
        ("b200-vllm-eager-prefill.json.gz", "vLLM", "eager", "generation"),
        ("mi300x-sglang-qwen3-8b-prefill.json.gz", "SGLang", "eager", "generation"),
        ("mi300x-vllm-decode-full-graph.json.gz", "vLLM", "full", "generation"),
        ("mi300x-vllm-graph-capture.json.gz", "vLLM", None, "capture"),
        ("mi300x-sglang-graph-capture-bs32.json.gz", "SGLang", None, "capture"),
        ("h100-hf-qwen1.5-forward.json.gz", None, "eager", "prefill_only"),
        ("cpu-switch-transformer.json.gz", None, None, "prefill_only"),
    ],
)
def test_what_the_runs_are(traces, name, engine, mode, workload):
    facts = analysed(traces / name)[0].facts
    assert (facts.engine, facts.graph_mode, facts.workload) == (engine, mode, workload)


def test_the_sums_of_the_sglang_label(traces):
    row = analysed(traces / "mi300x-sglang-qwen3-8b-prefill.json.gz")[0].table.iloc[0]
    assert (row.context_sum, row.query_context_sum) == (15360, 15728640)
    assert row.evidence[:1] == ("annotation step[EXTEND]",)
    assert "lm_head M=15 < layer M=15360" in row.evidence
