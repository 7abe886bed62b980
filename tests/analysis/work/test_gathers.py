"""What an indexing op takes, told by the grid of its kernel."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import measure

ROWS = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
ELEMENTS = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::OpaqueType<2>>>"


def indexed(dims: list[int], kernel: str, grid: int) -> pd.DataFrame:
    recording = Recording()
    recording.op("aten::index", 0, 100, [dims, []], [BF16, ""], ["", ""])
    recording.launch("cudaLaunchKernel", 10, 1)
    recording.kernel(kernel, 1_000, 50, 1, grid_x=grid, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1)
    trace = recording.trace()
    found = build(trace)
    return measure(trace, found, kernels.classes(trace, found))


@pytest.mark.parametrize(
    ("dims", "kernel", "grid", "count", "width", "exact"),
    [
        ([888, 2880], ROWS, 15, 15, 2880, True),
        ([888, 4, 64], ROWS, 3, 3, 256, True),
        ([888, 2880], ELEMENTS, 6, 1, 2880, True),  # one row of 2880 needs 6 blocks of 512
        ([888, 2880], ELEMENTS, 12, 2, 2880, True),
        ([100, 64], ELEMENTS, 1, 8, 64, False),  # 1 to 8 rows fit into a block
    ],
)
def test_rows_taken(dims: list[int], kernel: str, grid: int, count: int, width: int, exact: bool) -> None:
    table = indexed(dims, kernel, grid)
    assert table["bytes"].tolist() == [count * (2 * 2 * width + 8)]
    assert table["estimated"].tolist() == [not exact]
    assert table["source"].tolist() == ["grid"]


@pytest.mark.parametrize(("kernel", "grid"), [(ROWS, -1), (ELEMENTS, 2), ("void some_index_kernel(int)", 6)])
def test_without_a_grid_or_a_known_kernel_nothing_is_told(kernel: str, grid: int) -> None:
    table = indexed([888, 2880], kernel, grid)
    assert table["bytes"].isna().all()
    assert table["flops"].tolist() == [0]
