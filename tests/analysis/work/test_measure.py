"""How the work of an op reaches the kernels that did it, on hand-made recordings with real kernel names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16, FP32
from traceanalyzer.analysis import activity, kernels
from traceanalyzer.analysis.devices import Limits, describe
from traceanalyzer.analysis.timeline import ideal_times
from traceanalyzer.analysis.work import measure
from traceanalyzer.trace.tables import MEMCPY, MEMSET, MISSING, Metadata, Note

NVJET = "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_TNT"
SGEMM = "ampere_sgemm_32x32_sliced1x4_tn"
SPLIT_K = "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(float)"
FLASH = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, false>(Flash_fwd_params)"
COMBINE = "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, 4, 1, true>(params)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)"
MM = [[24, 64], [64, 96]]


def measured(recording: Recording) -> pd.DataFrame:
    trace = recording.trace()
    found = activity.build(trace)
    return measure(trace, found, kernels.classes(trace, found))


def one_op(name: str, dims: list[object], types: list[str], concrete: list[str], *ran: tuple[str, int]) -> pd.DataFrame:
    """One op that launched kernels of the given names and durations."""
    recording = Recording()
    recording.op(name, 0, 100, dims, types, concrete)
    for number, (kernel, duration) in enumerate(ran, 1):
        recording.launch("cudaLaunchKernel", 10 * number, number)
        recording.kernel(kernel, 1_000 * number, duration, number)
    return measured(recording)


def test_the_columns_and_their_types() -> None:
    table = one_op("aten::mm", MM, [BF16, BF16], ["", ""], (NVJET, 50))
    for name in ("flops", "bytes", "weight_bytes", "kv_bytes"):
        assert table[name].dtype == np.float64
    for name in ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"):
        assert table[name].dtype == np.int64
    for name in ("dtype", "category", "role", "source"):
        assert table[name].dtype == object
    assert table["tensor_core"].dtype == np.int8
    assert table[["m", "n", "k", "batch", "q_len"]].iloc[0].tolist() == [24, 96, 64, 1, MISSING]
    assert table["flops"].tolist() == [2 * 24 * 96 * 64]
    assert table["weight_bytes"].tolist() == [2 * 64 * 96]
    assert table["kv_bytes"].isna().all()
    assert table[["dtype", "tensor_core", "source", "category"]].iloc[0].tolist() == ["bf16", 1, "shapes", "gemm"]


def test_a_split_k_epilogue_gets_no_work_even_when_it_is_longer() -> None:
    table = one_op("aten::mm", MM, [FP32, FP32], ["", ""], (SGEMM, 50), (SPLIT_K, 90))
    assert table["flops"].tolist()[0] == 2 * 24 * 96 * 64
    assert np.isnan(table["flops"][1])
    assert np.isnan(table["bytes"][1])
    assert table["m"].tolist() == [24, MISSING]
    assert table["source"].tolist() == ["shapes", "none"]


def test_a_helper_whose_main_kernel_was_not_recorded_gets_nothing() -> None:
    for ran in ((SPLIT_K, 90), (POINTWISE, 40)):
        table = one_op("aten::mm", MM, [FP32, FP32], ["", ""], ran)
        assert table["flops"].isna().all()


def test_a_combine_pass_is_a_helper() -> None:
    q, k = [1, 1, 32, 128], [1, 700, 8, 128]
    table = one_op("aten::_flash_attention_forward", [q, k, k] + [[]] * 10,
                   [BF16] * 3 + [""] * 2 + ["Scalar"] * 5 + [""] * 3,
                   ["", "", "", "", "", "1", "700", "0.", "False", "False", "", "", ""],
                   (FLASH, 40), (COMBINE, 60))  # fmt: skip
    assert table["flops"].tolist()[0] == 4 * 32 * 700 * 128
    assert np.isnan(table["flops"][1])
    assert table["kv_bytes"].tolist()[0] == 2 * 2 * 700 * 8 * 128


def test_kernels_of_one_name_share_their_ops_work_by_time() -> None:
    table = one_op("aten::mm", MM, [BF16, BF16], ["", ""], (NVJET, 30), (NVJET, 60), (POINTWISE, 500))
    work = 2 * 24 * 96 * 64
    assert table["flops"].tolist()[:2] == pytest.approx([work / 3, work * 2 / 3])
    assert table["weight_bytes"].sum() == pytest.approx(2 * 64 * 96)
    assert np.isnan(table["flops"][2])


def test_kernels_without_any_time_share_equally() -> None:
    table = one_op("aten::mm", MM, [BF16, BF16], ["", ""], (NVJET, 0), (NVJET, 0))
    assert table["flops"].tolist() == [24 * 96 * 64, 24 * 96 * 64]


def test_a_parent_is_not_counted_again() -> None:
    recording = Recording()
    recording.op("aten::linear", 0, 100, [[24, 64], [96, 64]], [BF16, BF16], ["", ""])
    recording.op("aten::mm", 10, 90, MM, [BF16, BF16], ["", ""])
    recording.launch("cudaLaunchKernel", 50, 1)
    recording.launch("cudaMemsetAsync", 20, 2)
    recording.kernel("Memset (Device)", 900, 5, 2, kind=MEMSET, bytes=4)
    recording.kernel(NVJET, 1_000, 50, 1)
    table = measured(recording)
    assert table["flops"].tolist() == [0, 2 * 24 * 96 * 64]
    assert table["bytes"].tolist()[0] == 4


def test_the_kernels_name_tells_the_size_that_a_list_of_tensors_lacks() -> None:
    dims: list[object] = [[[2, 3], [2, 5]], []]
    table = one_op("aten::cat", dims, ["TensorList", "Scalar"], ["", "-1"], (CAT, 30))
    assert table["bytes"].tolist() == [2 * 32]
    other = one_op("aten::cat", dims, ["TensorList", "Scalar"], ["", "-1"], (POINTWISE, 30))
    assert other["bytes"].isna().all()
    assert other["flops"].tolist() == [0]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("Memcpy DtoD (Device -> Device)", MEMCPY, 2_000),
        ("Memcpy HtoD (Pageable -> Device)", MEMCPY, np.nan),
        ("Memcpy DtoH (Device -> Pinned)", MEMCPY, np.nan),
        ("Memset (Device)", MEMSET, 1_000),
    ],
)
def test_only_what_stays_on_the_device_counts_as_its_bytes(name: str, kind: int, expected: float) -> None:
    recording = Recording()
    recording.kernel(name, 0, 10, 1, kind=kind, bytes=1_000)
    table = measured(recording)
    assert table["flops"].tolist() == [0]
    assert table["bytes"].tolist() == pytest.approx([expected], nan_ok=True)


def test_a_copy_of_unrecorded_size_has_unknown_bytes() -> None:
    recording = Recording()
    recording.kernel("Memcpy DtoD (Device -> Device)", 0, 10, 1, kind=MEMCPY)
    assert measured(recording)["bytes"].isna().all()


def test_a_graph_replay_has_no_shapes() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 100, MM, [BF16, BF16], ["", ""])
    recording.launch("cudaGraphLaunch", 50, 1)
    recording.kernel(NVJET, 1_000, 50, 1)
    recording.kernel(NVJET, 1_100, 50, 1)
    table = measured(recording)
    assert table["flops"].isna().all()
    assert table["source"].eq("none").all()
    assert table["tensor_core"].tolist() == [1, 1]


TENSILE_FP32 = "Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1_AFC1"
TF32 = "ampere_fp32_s1688gemm_tf32_128x128_ldg8_f2f_stages_32x3_tn"


def test_the_unit_and_the_type_it_computes_in() -> None:
    simt = one_op("aten::mm", MM, [FP32, FP32], ["", ""], (SGEMM, 50))
    assert simt[["tensor_core", "dtype"]].iloc[0].tolist() == [0, "fp32"]
    assert kernels.classify(TF32).tensor_core == "yes"
    tf32 = one_op("aten::mm", MM, [FP32, FP32], ["", ""], (TF32, 50))
    assert tf32[["tensor_core", "dtype"]].iloc[0].tolist() == [1, "tf32"]


@pytest.mark.parametrize(
    ("gpu", "peak"),
    [
        # TFLOP/s of the vendor's sheets for matrix cores at fp32; the XF32 rate of CDNA 3 is four times that
        ("mi210", 45.3),
        ("mi250-gcd", 45.3),
        ("mi300x", 163.4),
        ("mi355x", 157.3),
        ("a100-sxm4-80gb", 156.0),  # no tensor core of NVIDIA's multiplies fp32: there it is tf32
    ],
)
def test_fp32_on_matrix_cores_is_held_against_their_own_rate(gpu: str, peak: float) -> None:
    table = one_op("aten::mm", MM, [FP32, FP32], ["", ""], (TENSILE_FP32, 50))
    assert table[["tensor_core", "dtype"]].iloc[0].tolist() == [1, "fp32"]
    info = describe(Metadata(), 0, launches_are_hip=False, limits=Limits(gpu))
    compute, _ = ideal_times(table, info)
    assert compute.tolist() == pytest.approx([2 * 24 * 96 * 64 / peak / 1e3], rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "rows", "unit"), [(BF16, 24, 1), (BF16, 1, -1), (FP32, 24, 0), ("double", 24, 0), (None, 24, -1)]
)
def test_a_maybe_is_settled_by_the_operands(dtype: str | None, rows: int, unit: int) -> None:
    recording = Recording()
    types = [dtype, dtype] if dtype else []
    recording.op("aten::mm", 0, 100, [[rows, 64], [64, 96]], types, ["", ""])
    recording.launch("cudaLaunchKernel", 50, 1)
    recording.kernel("some_kernel", 1_000, 50, 1)
    trace = recording.trace()
    found = activity.build(trace)
    classes = kernels.classes(trace, found).assign(category="gemm", role="gemm", tensor_core="maybe", dtype=None)
    assert measure(trace, found, classes)["tensor_core"].tolist() == [unit]


def test_on_a_cpu_the_work_goes_to_kernels_and_nothing_is_a_tensor_core() -> None:
    recording = Recording(devices=())
    recording.op("aten::linear", 0, 100, [[24, 64], [96, 64]], [FP32, FP32], ["", ""])
    recording.op("aten::mm", 10, 90, MM, [FP32, FP32], ["", ""])
    table = measured(recording)
    assert table["flops"].fillna(0).tolist() == [0, 2 * 24 * 96 * 64, 0]
    assert table["category"].tolist() == ["other", "gemm", "other"]
    assert table["tensor_core"].eq(0).all()
    assert table["dtype"].tolist() == [None, "fp32", None]


def test_nothing_recorded_is_an_empty_table() -> None:
    recording = Recording(notes=(Note("truncated_json", "error"),))
    recording.op("aten::mm", 0, 100, MM, [BF16, BF16], ["", ""])
    assert not len(measured(recording))
