"""Who launched what, and what a CPU ran, on hand-made recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.recorded import Recording
from traceanalyzer.analysis.activity import build
from traceanalyzer.errors import UnsupportedTraceError
from traceanalyzer.trace import read_trace
from traceanalyzer.trace.tables import MISSING, Note

LINEAR = [[2, 8], [4, 8], [4]]
MM = [[2, 8], [8, 4]]
FLOATS = ["float", "float", "float"]


def test_a_kernel_belongs_to_the_innermost_op_around_its_launch() -> None:
    recording = Recording()
    recording.op("aten::linear", 0, 100)
    inner = recording.op("aten::addmm", 20, 60)
    recording.op("aten::view", 30, 35)
    after = recording.op("aten::relu", 100, 130)
    recording.op("aten::mul", 0, 200, thread=1)
    recording.launch("cudaLaunchKernel", 50, 1)
    recording.launch("cudaLaunchKernel", 110, 2)
    recording.launch("cudaLaunchKernel", 140, 3)
    recording.kernel("gemm", 1_000, 10, 1)
    recording.kernel("relu", 1_020, 10, 2)
    recording.kernel("triton", 1_040, 10, 3)
    recording.kernel("early", 1_060, 10, 99)
    table = build(recording.trace()).table
    assert table["op"].tolist() == [inner, after, MISSING, MISSING]
    assert table["launch"].tolist() == [0, 1, 2, MISSING]
    assert table["call"].tolist() == [0, 1, 2, 3]


def test_an_op_ends_before_its_end() -> None:
    recording = Recording()
    recording.op("aten::add", 0, 50)
    next_op = recording.op("aten::mul", 50, 90)
    recording.launch("cudaLaunchKernel", 50, 1)
    recording.kernel("mul", 100, 10, 1)
    assert build(recording.trace()).table["op"].tolist() == [next_op]


def test_launches_of_different_threads_do_not_mix() -> None:
    recording = Recording()
    first = recording.op("aten::add", 0, 50)
    second = recording.op("aten::mul", 0, 50, thread=1)
    recording.launch("cudaLaunchKernel", 20, 1)
    recording.launch("cudaLaunchKernel", 20, 2, thread=1)
    recording.kernel("b", 100, 10, 2)
    recording.kernel("a", 120, 10, 1)
    assert build(recording.trace()).table["op"].tolist() == [second, first]


def test_the_external_id_stands_in_for_a_lost_launch() -> None:
    recording = Recording()
    op = recording.op("aten::add", 0, 50, external_id=17)
    recording.kernel("add", 100, 10, 5, external_id=17)
    recording.kernel("other", 120, 10, 6, external_id=18)
    recording.kernel("none", 140, 10, 7)
    assert build(recording.trace()).table["op"].tolist() == [op, MISSING, MISSING]


def test_without_correlations_the_external_id_joins_kernel_and_launch() -> None:
    """ROCm traces number launches in `External id`; the same number on an op is a coincidence."""
    recording = Recording()
    first = recording.op("aten::mm", 0, 50, external_id=1)
    second = recording.op("aten::mm", 50, 90, external_id=2)
    recording.launch("hipGetDeviceProperties", 10, external_id=1)
    recording.launch("hipExtModuleLaunchKernel", 20, external_id=2)
    recording.launch("hipExtModuleLaunchKernel", 60, external_id=4)
    recording.kernel("Cijk_a", 100, 10, external_id=2)
    recording.kernel("Cijk_a", 120, 10, external_id=4)
    table = build(recording.trace()).table
    assert table["launch"].tolist() == [1, 2]
    assert table["op"].tolist() == [first, second]


def test_kernels_of_a_graph_replay_have_a_launch_but_no_op() -> None:
    recording = Recording()
    recording.op("vllm::run", 0, 50)
    recording.launch("cudaGraphLaunch", 10, 1)
    recording.launch("cudaLaunchKernel", 20, 2)
    recording.kernel("a", 100, 10, 1)
    recording.kernel("b", 120, 10, 1)
    recording.kernel("c", 140, 10, 2)
    table = build(recording.trace()).table
    assert table["launch"].tolist() == [0, 0, 1]
    assert table["op"].tolist() == [MISSING, MISSING, 0]


def cpu(**more: object) -> Recording:
    return Recording(devices=(), **more)  # type: ignore[arg-type]


def test_on_a_cpu_the_outermost_op_with_a_model_is_the_kernel_and_its_callers_keep_their_own_time() -> None:
    recording = cpu()
    linear = recording.op("aten::linear", 0, 100, LINEAR, FLOATS)
    view = recording.op("aten::t", 10, 20)
    addmm = recording.op("aten::addmm", 30, 90, [[4], *MM], FLOATS)
    recording.op("aten::copy_", 40, 50)
    recording.op("aten::expand", 60, 70)
    softmax = recording.op("aten::softmax", 120, 150)
    recording.op("aten::_softmax", 125, 145)
    activity = build(recording.trace())
    assert activity.on_cpu
    table = activity.table
    found = list(zip(table["op"], table["start_ns"], table["duration_ns"], strict=True))
    assert found == [(linear, 0, 10), (view, 10, 10), (linear, 20, 10), (addmm, 30, 60), (linear, 90, 10),
                     (softmax, 120, 5), (softmax + 1, 125, 20), (softmax, 145, 5)]  # fmt: skip
    assert table["call"].tolist() == table["op"].tolist()
    assert table["kernel"].eq(MISSING).all()


def test_a_composite_op_without_its_part_is_the_kernel_itself() -> None:
    recording = cpu()
    linear = recording.op("aten::linear", 0, 100, LINEAR, FLOATS)
    recording.op("aten::copy_", 40, 50)
    table = build(recording.trace()).table
    assert list(zip(table["op"], table["start_ns"], table["duration_ns"], strict=True)) == [(linear, 0, 100)]


def test_threads_of_a_cpu_run_are_streams() -> None:
    recording = cpu()
    recording.op("aten::mm", 0, 100)
    recording.op("aten::mm", 50, 120, thread=1)
    table = build(recording.trace()).table
    assert list(zip(table["stream"], table["start_ns"], table["duration_ns"], strict=True)) == [(0, 0, 100),
                                                                                               (1, 50, 70)]  # fmt: skip
    assert table["device"].unique().tolist() == [0]


def test_a_listed_gpu_that_was_only_queried_leaves_a_cpu_run() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 100)
    recording.launch("cudaGetDeviceProperties_v2", 1)
    recording.launch("cudaDeviceSynchronize", 2)
    assert build(recording.trace()).on_cpu


def test_ops_that_only_a_cpu_has_make_a_cpu_run_on_a_machine_with_a_gpu() -> None:
    recording = Recording()
    recording.op("aten::_scaled_dot_product_flash_attention_for_cpu", 0, 100)
    assert build(recording.trace()).on_cpu


@pytest.mark.parametrize("evidence", ["launch", "listed", "op"])
def test_a_gpu_run_without_its_records_is_no_cpu_run(evidence: str) -> None:
    recording = Recording() if evidence == "listed" else cpu()
    recording.op("aten::mm", 0, 100)
    if evidence == "launch":
        recording.launch("cudaLaunchKernel", 10, 1)
    if evidence == "op":
        recording.op("nccl:all_reduce", 100, 120)
    with pytest.raises(UnsupportedTraceError, match=r"recorded\.json is a GPU run without its GPU records") as error:
        build(recording.trace())
    assert "\n" not in str(error.value)


def test_a_gpu_run_cut_before_its_records_is_analysed_as_far_as_it_is_whole() -> None:
    recording = Recording(notes=(Note("truncated_json", "error"),))
    recording.op("aten::mm", 0, 100)
    activity = build(recording.trace())
    assert not len(activity.table)
    assert not activity.on_cpu


def test_nothing_that_computes_is_nothing_to_analyse() -> None:
    recording = cpu()
    recording.op("aten::empty", 0, 100)
    recording.op("aten::copy_", 100, 110)
    with pytest.raises(UnsupportedTraceError, match="2 operator calls and 0 GPU runtime calls"):
        build(recording.trace())


@pytest.mark.parametrize(
    "name",
    ["rtx4060-almost-idle.json", "a10g-runtime-without-kernels.json", "a100-no-kernels-no-metadata.json.gz",
     "cpu-only-gloo.pt.trace.json.gz"],
)  # fmt: skip
def test_real_traces_without_gpu_records_are_refused(name: str, traces: Path) -> None:
    with pytest.raises(UnsupportedTraceError, match=name.split(".")[0]):
        build(read_trace(traces / name))


def test_a_real_cpu_run_on_a_machine_with_a_gpu(traces: Path) -> None:
    trace = read_trace(traces / "cpu-switch-transformer.json.gz")
    activity = build(trace)
    assert activity.on_cpu
    table = activity.table
    names = table["name"].map(trace.text)
    matrix_us = table["duration_ns"][names.isin(["aten::addmm", "aten::bmm"])].sum() / 1e3
    assert matrix_us == pytest.approx(2.24e6, rel=5e-3)
    assert "aten::copy_" not in set(names[table["duration_ns"] > 1_000_000]), "an addmm's own copy belongs to it"


def test_every_instant_of_a_cpu_thread_belongs_to_one_op(traces: Path) -> None:
    trace = read_trace(traces / "cpu-switch-transformer.json.gz")
    table = build(trace).table
    roots = trace.ops[trace.ops["parent"] == MISSING]
    assert table["duration_ns"].sum() == roots["duration_ns"].sum()
    ends = table["start_ns"] + table["duration_ns"]
    assert (table["start_ns"].to_numpy()[1:] >= ends.to_numpy()[:-1]).all()
    assert (table["duration_ns"] > 0).all()


def test_a_real_trace_without_correlations(traces: Path) -> None:
    trace = read_trace(traces / "amd-tall-skinny-gemm-no-correlation.json.gz")
    table = build(trace).table
    assert table["op"].tolist() == trace.ops.index.tolist(), "ten matrix products, one kernel each, in order"


def test_kernels_launched_before_the_window_stay_unowned(traces: Path) -> None:
    table = build(read_trace(traces / "h100-hf-qwen1.5-forward.json.gz")).table
    kernels = table[table["kind"] == 0]
    assert (kernels["launch"] < 0).sum() == 436
    assert (kernels["op"] < 0).sum() == 436
