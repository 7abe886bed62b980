"""Communication has no bytes of device memory; its op names the collective where the kernel does not."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import measure

GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def launched(kernel: str, *ops: str) -> pd.DataFrame:
    recording = Recording()
    for depth, name in enumerate(ops):
        recording.op(name, depth, 100 - depth, [[64, 64]], [BF16], [""])
    recording.launch("cudaLaunchKernel", 50, 1)
    recording.kernel(kernel, 1_000, 50, 1)
    trace = recording.trace()
    found = build(trace)
    return measure(trace, found, kernels.classes(trace, found))


@pytest.mark.parametrize(
    ("kernel", "ops", "role"),
    [
        (GENERIC, ("vllm::all_reduce", "c10d::allreduce_", "record_param_comms"), "all_reduce"),
        (GENERIC, ("c10d::_allgather_base_", "record_param_comms"), "all_gather"),
        (GENERIC, ("c10d::_reduce_scatter_base_", "record_param_comms"), "reduce_scatter"),
        (GENERIC, ("c10d::broadcast_",), "broadcast"),
        (GENERIC, (), "collective"),
        (GENERIC, ("aten::mm",), "collective"),
        (SEND_RECV, ("c10d::alltoall_base_", "record_param_comms"), "all_to_all"),
        (SEND_RECV, ("c10d::send", "record_param_comms"), "send_recv"),
        (GATHER, ("vllm::all_reduce",), "all_gather"),  # a kernel's own name comes first
    ],
)
def test_the_op_names_what_the_kernel_does_not(kernel: str, ops: tuple[str, ...], role: str) -> None:
    table = launched(kernel, *ops)
    assert table[["category", "role"]].to_numpy().tolist() == [["comm", role]]
    assert table[["flops", "bytes"]].isna().all().all()
    assert table["source"].tolist() == ["none"]
