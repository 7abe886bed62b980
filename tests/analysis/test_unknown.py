"""Kernels without work, by the time they take, and the note that names the longest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer.analysis import kernels, quality, steps, timeline
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.devices import Limits, describe
from traceanalyzer.analysis.unknown import COLUMNS, kernels_without_work, unknown_by_time
from traceanalyzer.analysis.work import measure

GEMM = "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_TNT"
EXPERTS = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FUSED = "triton_poi_fused_add_0"


def line(experts_ns: int) -> timeline.Timeline:
    """A product that is known, experts of an op without a model, a fused kernel, a collective."""
    recording = Recording()
    recording.op("aten::mm", 0, 100, [[64, 64], [64, 64]], [BF16, BF16], ["", ""])
    recording.op("engine::experts", 200, 300, [[64, 64]], [BF16], [""])
    recording.op(FUSED, 400, 500, [[64, 64], [64, 64], []], [BF16, BF16, "Scalar"], ["", "", "4096"])
    for number, time in enumerate((50, 250, 260, 450), 1):
        recording.launch("cudaLaunchKernel", time, number)
    recording.kernel(GEMM, 1_000, 3_000, 1)
    recording.kernel(EXPERTS, 10_000, experts_ns, 2)
    recording.kernel(EXPERTS, 20_000, experts_ns, 3)
    recording.kernel(FUSED, 30_000, 1_000, 4)
    recording.kernel(GEMM, 35_000, 500)
    recording.kernel(REDUCE, 40_000, 9_000)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    device = describe(trace.metadata, 0, launches_are_hip=False, limits=Limits("h100-sxm-80gb"))
    known = steps.find(trace, found, work)
    return timeline.build(trace, device, found.table, work, known.table, known.activity_step)


def test_the_longest_come_first_and_say_what_they_lack() -> None:
    found = unknown_by_time(line(2_000))
    assert list(found.columns) == list(COLUMNS)
    assert found.to_numpy().tolist() == [
        ["moe", "expert-gemm", "engine::experts", "both", 2, 4_000],
        ["fused_triton", "pointwise", FUSED, "flops", 1, 1_000],
        ["gemm", "cublas-nvjet", "", "both", 1, 500],
    ]


def test_kernels_that_take_no_time_have_no_share_and_no_row() -> None:
    found = line(2_000)
    assert len(kernels_without_work(found)) == 3
    still = replace(found, table=found.table.assign(duration_ns=0))
    assert kernels_without_work(still).empty


def test_the_note_names_the_longest() -> None:
    made = line(2_000)
    shapes = replace(made.trace, metadata=replace(made.trace.metadata, record_shapes=True))
    (note,) = quality.unknown_work(replace(made, trace=shapes))
    assert (note.code, note.count) == ("unknown_work_of_ops", 4)
    # 5.5 of 8.5 us are not known: 4 of experts, 1 fused, 0.5 of a product without an op
    assert note.detail == (
        "65 %, moe expert-gemm of engine::experts 47.1 %, fused_triton pointwise of triton_poi_fused_add_0 11.8 %, "
        "gemm cublas-nvjet 5.9 %"
    )


def test_without_unknown_work_there_is_nothing_to_list() -> None:
    made = line(2_000)
    full = made.table.assign(flops=1.0, bytes=1.0)
    assert not len(unknown_by_time(replace(made, table=full)))
    assert quality.unknown_work(replace(made, table=full)) == []
    assert np.isfinite(full["bytes"]).all()
