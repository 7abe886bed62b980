"""Ops as vLLM 0.33 and SGLang 0.5.23 define them, against closed forms; their argument orders are quoted from there."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16, FP16, FP32, call, known
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import fill_attention, measure

M, N, K = 24, 1536, 4096
FP8, BYTE, INT8, S = "c10::Float8_e4m3fn", "unsigned char", "signed char", "Scalar"
G = K // 128

# name, arguments in order (shape and type, or a value), compute dtype, bytes of the weight with all that belongs to it,
# bytes of activations (their scales included); the output is always 16 bits
PRODUCTS: dict[str, tuple[str, list[tuple[list[int], str] | str], str, float, float]] = {
    # marlin_gemm(a, c, b_q_weight, b_bias, b_scales, a_scales, global_scale, b_zeros, workspace, b_q_type, size_m,
    #   size_n, size_k, use_atomic_add, use_fp32_reduce, is_zp_float), vllm/_custom_ops.py
    "marlin int4": ("_C::marlin_gemm", [([M, K], BF16), "", ([K // 16, 2 * N], "int"), "", ([G, N], BF16), "", "", "",
                    ([512], "int"), "2814749767106568", str(M), str(N), str(K), "False", "True", "False"],
                    "bf16", 0.5 * N * K + 2 * G * N, 2 * M * K),
    "marlin int8": ("_C::marlin_gemm", [([M, K], FP16), "", ([K // 16, 4 * N], "int"), "", ([1, N], FP16), "", "", "",
                    ([512], "int"), "1125899906909960", str(M), str(N), str(K), "False", "True", "False"],
                    "fp16", 1.0 * N * K + 2 * N, 2 * M * K),
    # triton_w4a16_gemm(a, b_q, scales, qzeros, group_size, zp_bias), mixed_precision/triton_w4a16.py
    "triton w4a16": ("vllm::triton_w4a16_gemm", [([M, K], FP16), ([K, N // 8], "int"), ([G, N], FP16),
                     ([G, N // 8], "int"), "128", "8"], "fp16", 0.5 * N * K + 2 * G * N + 0.5 * G * N, 2 * M * K),
    # flashinfer_mm_bf16_fp4(A, B, B_scale, global_scale), vllm/utils/flashinfer.py
    "bf16 x nvfp4": ("vllm::flashinfer_mm_bf16_fp4", [([M, K], BF16), ([N, K // 2], BYTE), ([N, K // 16], FP8),
                     ([1], FP32)], "bf16", N * K / 2 + N * K / 16 + 4, 2 * M * K),
    # flashinfer_mm_fp4(A, B, A_scale, B_scale, g_scale, dtype, use_8x4_sf_layout, backend, block_size, use_nvfp4)
    "native nvfp4": ("vllm::flashinfer_mm_fp4", [([M, K // 2], BYTE), ([K // 2, N], BYTE), ([M, K // 16], FP8),
                     ([K // 16, N], FP8), ([], FP32), "15", "False", "", "16", "True"],
                     "fp4", N * K / 2 + N * K / 16, M * K / 2 + M * K / 16),
    # matmul_mxf4_bf16(x, w, xs, ws, alpha), quantization/fp_quant.py
    "native mxfp4": ("vllm::matmul_mxf4_bf16", [([M, K // 2], BYTE), ([N, K // 2], BYTE), ([M, K // 32], BYTE),
                     ([N, K // 32], BYTE), ([1], FP32)], "fp4", N * K / 2 + N * K / 32, M * K / 2 + M * K / 32),
    # fp8_gemm_nt_op(q_input, input_scale, weight, weight_scale, output, use_deep_gemm_e8m0), scaled_mm/deep_gemm.py
    "deep gemm": ("vllm::fp8_gemm_nt_op", [([M, K], FP8), ([M, G], FP32), ([N, K], FP8), ([N // 128, G], FP32),
                  ([M, N], BF16), "False"], "fp8", N * K + 4 * G * N / 128, M * K + 4 * M * G),
    # int8_scaled_mm_func(qx, weight, x_scale, weight_scale, output_dtype, bias), scaled_mm/triton.py
    "triton int8": ("vllm::int8_scaled_mm_func", [([M, K], INT8), ([K, N], INT8), ([M, 1], FP32), ([N, 1], FP32), "15",
                    ""], "int8", N * K + 4 * N, M * K + 4 * M),
    # wvSplitK_int4_g(in_a, in_b, in_scale, in_zero_points, in_bias, CuCount, group_size), vllm/_custom_ops.py
    "skinny int4": ("_rocm_C::wvSplitK_int4_g", [([N, K // 2], INT8), ([M, K], FP16), ([N, G], FP16), "", "", "304",
                    "128"], "fp16", N * K / 2 + 2 * N * G, 2 * M * K),
    # wvSplitKQ(a, b, bias, out, scale_a, scale_b, cu_count), vllm/_custom_ops.py
    "skinny fp8": ("_rocm_C::wvSplitKQ", [([N, K], FP8), ([M, K], FP8), "", ([M, N], BF16), ([1], FP32), ([1], FP32),
                   "304"], "fp8", N * K + 4, M * K + 4),
    # aiter_gemm_a4w4(x, w, x_scales, w_scales, output_dtype_ref), sglang quark_w4a4_mxfp4.py
    "aiter mxfp4": ("sglang::aiter_gemm_a4w4", [([M, K // 2], BYTE), ([N, K // 2], BYTE), ([M, K // 32], BYTE),
                    ([N, K // 32], BYTE), ([1], BF16)], "fp4", N * K / 2 + N * K / 32, M * K / 2 + M * K / 32),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_quantised_weights(name: str) -> None:
    op, arguments, dtype, weight, activations = PRODUCTS[name]
    dims = [argument[0] if isinstance(argument, tuple) else [] for argument in arguments]
    types = [argument[1] if isinstance(argument, tuple) else S if argument else "" for argument in arguments]
    work = known(op, dims, types, ["" if isinstance(argument, tuple) else argument for argument in arguments])
    assert work.flops == 2 * M * N * K
    assert work.bytes == activations + weight + 2 * M * N
    assert work.weight_bytes == weight
    assert (work.dtype, work.m, work.n, work.k) == (dtype, M, N, K)


def test_a_weight_only_product_is_held_against_the_activations_peak() -> None:
    """int4 weights are unpacked to 16 bits: no int4 peak, whatever the kernel's name says of its operands."""
    recording = Recording()
    dims: list[Any] = [[M, K], [], [K // 16, 2 * N], [], [G, N], [], [], [], [512], *[[]] * 7]
    types = [BF16, "", "int", "", BF16, "", "", "", "int", *[S] * 7]
    concrete = [""] * 9 + ["2814749767106568", str(M), str(N), str(K), "False", "True", "False"]
    recording.op("_C::marlin_gemm", 0, 100, dims, types, concrete)
    recording.launch("cudaLaunchKernel", 10, 1)
    recording.kernel(
        "void marlin::Marlin<(long)1, (long)2, (long)3, (long)4, (int)256, (int)1, (int)8>(...)", 1_000, 50, 1
    )
    trace = recording.trace()
    found = build(trace)
    table = measure(trace, found, kernels.classes(trace, found))
    assert table["dtype"].tolist() == ["bf16"]
    assert table["tensor_core"].tolist() == [1]
    assert table["weight_bytes"].tolist() == [0.5 * N * K + 2 * G * N]


# moe_wna16_marlin_gemm(input, output, b_qweight, b_bias, b_scales, a_scales, global_scale, b_qzeros, workspace,
#   sorted_token_ids, expert_ids, num_tokens_past_padded, topk_weights, moe_block_size, top_k, mul_topk_weights,
#   b_q_type, size_m, size_n, size_k, use_atomic_add, use_fp32_reduce, is_zp_float, thread_k, thread_n, blocks_per_sm)
def test_marlin_experts_of_either_version_with_26_arguments() -> None:
    tokens, chosen, experts = 64, 8, 128
    dims: list[Any] = [[tokens, K], [], [experts, K // 16, 2 * N], [], [experts, G, N], *[[]] * 21]
    types = [BF16, "", "int", "", BF16, *[""] * 21]
    later = [*[""] * 13, "8", str(chosen), "False", "2814749767106568", str(tokens), str(N), str(K), *["False"] * 3,
             "-1", "-1", "-1"]  # fmt: skip
    earlier = [*[""] * 14, "8", str(chosen), "False", "False", "2814749767106568", str(tokens), str(N), str(K), "False",
               "True", "False", "False"]  # fmt: skip
    active = experts * (1 - (1 - chosen / experts) ** tokens)
    for concrete in (later, earlier):
        work = known("_moe_C::moe_wna16_marlin_gemm", dims, types, concrete)
        assert work.flops == 2 * tokens * chosen * N * K
        assert work.weight_bytes == pytest.approx(active * (0.5 * N * K + 2 * G * N))
        assert work.weight_bytes_max == experts * (0.5 * N * K + 2 * G * N)
        assert work.dtype == "bf16"
    neither = ["" if text in ("True", "False") else text for text in later]
    assert call("_moe_C::moe_wna16_marlin_gemm", dims, types, neither) is None


# lora_shrink(inputs, lora_a_weights, output_tensor, token_lora_mapping, token_indices_sorted_by_lora_ids,
#   num_tokens_per_lora, lora_token_start_loc, lora_ids, no_lora_flag_cpu, num_active_loras, scaling)
# lora_expand(the same with lora_b_weights, offset_start, add_inputs), vllm/lora/ops/triton_ops
META: list[Any] = [[32], [32], [5], [6], [5], [1], [1]]
META_TYPES = ["int", "int", "int", "int", "int", "bool", "int"]


@pytest.mark.parametrize(("tokens", "active"), [(1, 1.0), (32, 4 * (1 - 0.75**32))])
def test_adapters_are_read_as_often_as_some_token_takes_them(tokens: int, active: float) -> None:
    """Rank 16 on q, k and v of 4096 and twice 1024; four adapters are loaded."""
    stacks = [[4, 16, 4096]] * 3
    shrink = known("vllm::lora_shrink", [[tokens, 4096], stacks, [3, tokens, 16], *META, []],
                   [BF16, "TensorList", FP32, *META_TYPES, S])  # fmt: skip
    assert shrink.flops == 3 * 2 * tokens * 4096 * 16
    assert shrink.weight_bytes == pytest.approx(active * 3 * 16 * 4096 * 2)
    assert (shrink.weight_bytes_min, shrink.weight_bytes_max) == (3 * 16 * 4096 * 2, min(4, tokens) * 3 * 16 * 4096 * 2)
    assert shrink.bytes == pytest.approx(2 * tokens * 4096 + 4 * tokens * 48 + active * 3 * 16 * 4096 * 2)
    expand = known("vllm::lora_expand",
                   [[3, tokens, 16], [[4, n, 16] for n in (4096, 1024, 1024)], [tokens, 6144], *META, [], []],
                   [FP32, "TensorList", BF16, *META_TYPES, S, S], [""] * 10 + ["0", "True"])  # fmt: skip
    assert expand.flops == 2 * tokens * 16 * (4096 + 1024 + 1024)
    assert expand.bytes == pytest.approx(4 * 3 * tokens * 16 + 2 * 2 * tokens * 6144 + active * 2 * 16 * 6144)
    assert (shrink.role, shrink.dtype, expand.dtype, shrink.estimated) == ("lora", "bf16", "bf16", True)


def test_an_adapter_that_does_not_fit_is_unknown() -> None:
    assert call("vllm::lora_shrink", [[8, 4096], [[4, 16, 2048]], [1, 8, 16], *META, []],
                [BF16, "TensorList", FP32, *META_TYPES, S]) is None  # fmt: skip
    assert call("vllm::lora_shrink", [[8, 4096], [[4, 16, 4096], [2, 16, 4096]], [2, 8, 16], *META, []],
                [BF16, "TensorList", FP32, *META_TYPES, S]) is None  # fmt: skip


def latent_step(tokens: int, facts: dict[str, Any]) -> pd.DataFrame:
    """unified_mla_attention_with_output(q, kv_c_normed, k_pe, output, layer_name, ...) of DeepSeek V3 on eight ranks,
    whose cache is written in fp8."""
    recording = Recording()
    dims: list[Any] = [[tokens, 16, 192], [tokens, 512], [tokens, 1, 64], [tokens, 2048], []]
    recording.op("vllm::unified_mla_attention_with_output", 0, 100, dims, [BF16] * 4 + [""])
    recording.launch("cudaLaunchKernel", 10, 1)
    recording.kernel("_fwd_grouped_kernel_stage1", 1_000, 50, 1)
    recording.op("_C_cache_ops::concat_and_cache_mla", 200, 300, [[tokens, 512], [tokens, 64], [99, 64, 576], [tokens]],
                 [BF16, BF16, BYTE, "long int"])  # fmt: skip
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    none = dict.fromkeys(("prefill_tokens", "prefill_sequences", "decode_tokens", "decode_sequences"), 0.0)
    step = {"step": 0, "padded_tokens": 0.0, "query_context_sum": nan, "tokens": float(tokens), **none, **facts}
    return fill_attention(trace, found, work, pd.DataFrame([step]), np.zeros(len(work), np.int32))


def test_latent_attention_is_absorbed_where_it_decodes() -> None:
    """Every head scores 512 + 64 numbers of one row per key and weighs its 512 latents: 2 H k (576 + 512)."""
    facts = {"phase": "decode", "sequences": 32.0, "decode_tokens": 32.0, "decode_sequences": 32.0, "context_sum": 9e4}
    table = latent_step(32, facts)
    assert table["flops"].tolist() == [2.0 * 16 * 9e4 * (576 + 512)]
    assert table["kv_bytes"].tolist() == [9e4 * 576]
    assert table["bytes"].tolist() == [9e4 * 576 + 2.0 * 32 * 16 * (576 + 512)]


def test_latent_attention_is_expanded_where_it_reads_a_prompt() -> None:
    """Keys of 128 + 64 and values of 128 for each head: 2 H P (192 + 128), P half of the square."""
    facts = {"phase": "prefill", "sequences": 1.0, "prefill_tokens": 700.0, "prefill_sequences": 1.0,
             "context_sum": 700.0}  # fmt: skip
    table = latent_step(700, facts)
    assert table["flops"].tolist() == [2.0 * 16 * 700 * 700 / 2 * (192 + 128)]
    assert table["bytes"].tolist() == [2 * 2.0 * 700 * 16 * (192 + 128)]
    with_past = {**facts, "context_sum": 2000.0}  # read in pieces, by kernels of which this is one
    assert latent_step(700, with_past)[["flops", "bytes"]].isna().all().all()


def of_op(op: str, dims: list[Any], types: list[str], *names: str, concrete: list[str] | None = None) -> pd.DataFrame:
    recording = Recording()
    recording.op(op, 0, 900, dims, types, concrete or [""] * len(dims))
    for number, name in enumerate(names, 1):
        recording.launch("cudaLaunchKernel", 10 * number, number)
        recording.kernel(name, 1_000 * number, 50, number)
    trace = recording.trace()
    found = build(trace)
    return measure(trace, found, kernels.classes(trace, found))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("symm_mem::multimem_all_reduce_", "void (anonymous)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)"),
        ("_C_custom_ar::all_reduce", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)"),
        ("_C_custom_ar::qr_all_reduce", "void quickreduce::allreduce_prototype_twoshot<__half>(...)"),
        ("vllm::flashinfer_trtllm_fused_allreduce_norm",
         "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, bf16, 8>"),
        ("aten::add", "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(...)"),
    ],
)  # fmt: skip
def test_whoever_wrote_it_a_collective_communicates(op: str, name: str) -> None:
    table = of_op(op, [[M, K], [M, K]], [BF16, BF16], name)
    assert (table["category"].tolist(), table["role"].tolist()) == (["comm"], ["all_reduce"])
    assert table[["flops", "bytes"]].isna().all().all()


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("vllm::mamba_mixer2", ("_causal_conv1d_fwd_kernel", "_chunk_scan_fwd_kernel", "_state_passing_fwd_kernel")),
        ("vllm::qwen_gdn_attention_core", ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_fwd_kernel_o")),
        ("vllm::linear_attention", ("fused_recurrent_gated_delta_rule_fwd_kernel",)),
        ("_C::selective_scan_fwd", ("void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<64, 16>>(...)",)),
    ],
)
def test_state_space_models_have_their_time_and_no_work(op: str, names: tuple[str, ...]) -> None:
    table = of_op(op, [[M, K], [M, K]], [BF16, BF16], *names)
    assert set(table["category"]) == {"ssm"}
    assert table[["flops", "bytes"]].isna().all().all()
    assert set(table["source"]) == {"none"}


@pytest.mark.parametrize(
    ("types", "size"),
    [([FP32, FP32], 8), ([BF16, FP32], 6), ([FP8, BF16], 3), (["bool", "long int"], 9), ([INT8, FP16], 3)],
)
def test_compiled_kernels_move_their_pointers_at_their_own_types(types: list[str], size: int) -> None:
    """4096 x 2048 numbers, read at one type and written at the other; only a kernel of copies tells its FLOPs: none."""
    name = "triton_poi_fused__to_copy_add_mul_1"
    table = of_op(name, [[4096, 2048], [4096, 2048], []], [*types, S], name, concrete=["", "", "8388608"])
    assert table["bytes"].tolist() == [size * 8388608.0]
    assert table["flops"].isna().all()
    copy = "triton_poi_fused__to_copy_1"
    table = of_op(copy, [[4096, 2048], [4096, 2048], []], [*types, S], copy, concrete=["", "", "8388608"])
    assert table[["flops", "bytes"]].to_numpy().tolist() == [[0.0, size * 8388608.0]]
    assert table["estimated"].all()


def test_a_compiled_kernel_takes_rows_of_a_table_not_the_table() -> None:
    """An embedding of 32 tokens and a norm: ids, rows of 151936 x 1024, the weight and the result."""
    name = "triton_red_fused_embedding_mean_mul_pow_rsqrt_0"
    table = of_op(name, [[32], [151936, 1024], [1024], [32, 1024], [], []], ["long int", BF16, BF16, BF16, S, S], name,
                  concrete=["", "", "", "", "32", "1024"])  # fmt: skip
    assert table["bytes"].tolist() == [8.0 * 32 + 2 * 32 * 1024 + 2 * 1024 + 2 * 32 * 1024]


def test_a_compiled_product_is_a_product() -> None:
    name = "triton_tem_fused_mm_3"
    table = of_op(name, [[M, K], [K, N], [M, N], [], []], [BF16, BF16, BF16, S, S], name)
    assert table["flops"].tolist() == [2.0 * M * N * K]
    assert table["bytes"].tolist() == [2.0 * (M * K + K * N + M * N)]
    assert table["category"].tolist() == ["gemm"]
