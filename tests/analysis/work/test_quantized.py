"""Products with weights of few bits: the bytes per weight of each format, whatever its packing."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, FP16, FP32, call, known
from traceanalyzer.analysis.work import OpWork

M, N, K = 8, 1024, 4096
FP8, FP4, BYTE, INT8 = "c10::Float8_e4m3fn", "c10::Float4_e2m1fn_x2", "unsigned char", "signed char"
S = "Scalar"


def awq() -> OpWork:
    dims = [[M, K], [K, N // 8], [K // 128, N], [K // 128, N // 8], []]
    return known("_C::awq_gemm", dims, [FP16, "int", FP16, "int", S])


def gptq() -> OpWork:
    dims = [[M, K], [K // 8, N], [K // 128, N // 8], [K // 128, N], [K], [], []]
    return known("_C::gptq_gemm", dims, [FP16, "int", "int", FP16, "int", S, S])


def machete() -> OpWork:
    dims = [[M, K], [K // 8, N], [], [], [K // 128, N], [], [], [], [], []]
    return known("_C::machete_mm", dims, [BF16, "int", S, "", BF16, "", S, "", "", ""])


def tinygemm() -> OpWork:
    dims = [[M, K], [N // 8, K // 128, 32, 4], [], [K // 128, N, 2]]
    return known("aten::_weight_int4pack_mm", dims, [BF16, "int", S, BF16])


def marlin(arguments: int, **at: int) -> OpWork:
    """The tile-packed weight and its scales at the places that a version of the op has them."""
    dims: list[list[int]] = [[] for _ in range(arguments)]
    types, concrete = [""] * arguments, [""] * arguments
    shapes = {"a": ([M, K], FP16), "b": ([K // 16, 2 * N], "int"), "scales": ([K // 128, N], FP16)}
    for name, (shape, kind) in shapes.items():
        dims[at[name]], types[at[name]] = shape, kind
    for place, size in zip(range(at["m"], at["m"] + 3), (M, N, K), strict=True):
        types[place], concrete[place] = S, str(size)
    return known("_C::gptq_marlin_gemm", dims, types, concrete)


def nf4() -> OpWork:
    dims = [[M, K], [N * K // 2, 1], [], [N * K // 64], [], [], [], [], [], []]
    return known("bitsandbytes::gemm_4bit", dims, [BF16, BYTE, "ScalarList", FP32] + [""] * 6,
                 ["", "", f"[{N}, {K}]"] + [""] * 7)  # fmt: skip


def nvfp4() -> OpWork:
    dims = [[M, N], [M, K // 2], [N, K // 2], [], [N, K // 16], []]
    return known("_C::cutlass_scaled_fp4_mm", dims, [BF16, BYTE, BYTE, "", FP8, FP32])


FORMATS = {
    # bytes per weight: values, scales of groups of 128 (64, 16), zeros
    "awq": (awq, 0.5 + 2 / 128 + 0.5 / 128),
    "gptq": (gptq, 0.5 + 2 / 128 + 0.5 / 128),
    "machete": (machete, 0.5 + 2 / 128),
    "tinygemm": (tinygemm, 0.5 + (2 + 2) / 128),
    "marlin-11": (lambda: marlin(11, a=0, b=1, scales=2, m=7), 0.5 + 2 / 128),
    "marlin-14": (lambda: marlin(14, a=0, b=1, scales=2, m=8), 0.5 + 2 / 128),
    "marlin-17": (lambda: marlin(17, a=0, b=2, scales=3, m=10), 0.5 + 2 / 128),
    "marlin-18": (lambda: marlin(18, a=0, b=2, scales=4, m=11), 0.5 + 2 / 128),
    "marlin-19": (lambda: marlin(19, a=0, b=2, scales=4, m=12), 0.5 + 2 / 128),
    "nf4": (nf4, 0.5625),
    "nvfp4": (nvfp4, 0.5625),
}


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_per_weight_of_a_format(name: str) -> None:
    call_it, per_weight = FORMATS[name]
    work = call_it()
    assert work.flops == 2 * M * N * K
    assert (work.m, work.n, work.k) == (M, N, K)
    activations = M * K * (0.5 if name == "nvfp4" else 2) + 2 * M * N
    small = {"nvfp4": 4}.get(name, 0)  # one scale for the whole tensor
    assert work.bytes is not None
    assert work.bytes - activations == pytest.approx(per_weight * N * K, abs=small)
    assert work.weight_bytes == pytest.approx(per_weight * N * K, abs=small)
    assert work.dtype == ("fp4" if name == "nvfp4" else "bf16" if name in ("machete", "tinygemm", "nf4") else "fp16")


def test_a_vector_times_a_4_bit_weight() -> None:
    dims = [[1, 1, K], [N * K // 2, 1], [], [N * K // 64], [16], []]
    work = known("bitsandbytes::gemv_4bit", dims, [BF16, BYTE, "ScalarList", FP32, FP32, S],
                 ["", "", f"[{N}, {K}]", "", "", "64"])  # fmt: skip
    assert (work.m, work.flops) == (1, 2 * N * K)
    assert work.bytes == 2 * K + 0.5625 * N * K + 4 * 16 + 2 * N


@pytest.mark.parametrize("shape", ["", "[1024]", "[1024, 4000]", "[4096, 1024]"])
def test_a_weight_whose_shape_does_not_fit_is_unknown(shape: str) -> None:
    dims = [[1, K], [N * K // 2, 1], [], [N * K // 64], [16], []]
    assert call("bitsandbytes::gemv_4bit", dims, [BF16, BYTE, "ScalarList", FP32, FP32, S], ["", "", shape]) is None


def test_a_weight_of_an_impossible_number_of_bits_is_misread() -> None:
    dims = [[M, K], [K, N], [K // 128, N], [], []]
    assert call("_C::awq_gemm", dims, [FP16, "int", FP16, "", S]) is None  # 32 bits per value


def test_a_version_with_another_number_of_arguments_is_unknown() -> None:
    assert call("_C::gptq_marlin_gemm", [[M, K], [K // 16, 2 * N], [K // 128, N]], [FP16, "int", FP16]) is None


def test_int8_activations_and_weights_answer_in_16_bits() -> None:
    dims, types = [[M, K], [K, N], [M, 1], [N, 1], [], []], [INT8, INT8, FP32, FP32, S, ""]
    work = known("sgl_kernel::int8_scaled_mm", dims, types, ["", "", "", "", "15", ""])
    assert work.dtype == "int8"
    assert work.bytes == M * K + N * K + 2 * M * N + 4 * M + 4 * N


def test_block_scales_add_four_bytes_per_128() -> None:
    dims = [[M, K], [M, K // 128], [N, K], [N // 128, K // 128], [M, N]]
    work = known("sglang::deep_gemm_fp8_fp8_bf16_nt", dims, [FP8, FP32, FP8, FP32, BF16])
    assert work.flops == 2 * M * N * K
    assert work.bytes == (M * K) * (1 + 4 / 128) + N * K * (1 + 4 / 128**2) + 2 * M * N


@pytest.mark.parametrize(
    ("dtype", "inner", "recipe", "scales", "scale_bytes"),
    [
        (FP4, K // 2, "[2]", K // 16, 1),
        (FP8, K, "[3]", K // 32, 1),
        (FP8, K, "[1]", 1, 4),
        (FP8, K, "[4]", K // 128, 4),
    ],
)
def test_scales_given_as_a_list_have_the_size_of_their_recipe(
    dtype: str, inner: int, recipe: str, scales: int, scale_bytes: int
) -> None:
    dims = [[M, inner], [inner, N], [[M, scales]], [], [], [[N, scales]], [], [], [], [], [], []]
    types = [dtype, dtype, "TensorList", "ScalarList", "", "TensorList", "ScalarList", "", "", S, "", S]
    concrete = ["", "", "", recipe, "", "", recipe, "", "", "15", "", "False"]
    work = known("aten::_scaled_mm_v2", dims, types, concrete)
    assert (work.flops, work.k) == (2 * M * N * K, K)
    assert work.bytes == (M + N) * inner + (M + N) * scales * scale_bytes + 2 * M * N


def test_unpacking_reads_four_bits_and_writes_sixteen() -> None:
    dims = [[N * K // 2, 1], [N * K // 64], [], [], [], []]
    types = [BYTE, FP32, S, "", "ScalarList", S]
    work = known("bitsandbytes::dequantize_4bit", dims, types, ["", "", "64", "", f"[{N}, {K}]", "15"])
    assert work.bytes == (0.5625 + 2) * N * K
    assert call("bitsandbytes::dequantize_4bit", dims, types) is None
    unpacked = known("_C::awq_dequantize", [[K, N // 8], [K // 128, N], [K // 128, N // 8]], ["int", FP16, "int"])
    assert unpacked.bytes == (0.5 + 2.5 / 128 + 2) * N * K
