"""Kernel classes: what a name says about category, tensor core, data type and phase."""

# ruff: noqa: E501 - kernel names are as long as they are
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis import lines
from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import COLUMNS, classes, classify
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET

TENSOR_CORES = [
    # (name, tensor core, compute dtype): the same libraries on and off tensor cores
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_kernel", "no", "fp32"),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel", "yes", "tf32"),
    ("sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel", "yes", "bf16"),
    ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32_kernel", "yes", "int8"),
    ("ampere_sgemm_128x64_nn", "no", "fp32"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params)", "no", "fp32"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(cutlass_80_tensorop::Params)", "yes", "tf32"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1>(cutlass_80_tensorop::Params)", "yes", "fp64"),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "yes", "fp16"),
    ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "yes", "bf16"),
    ("nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT", "yes", "fp8"),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false>", "no", "bf16"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_MI16x16x1_SN_LDSB1_AFC1", "yes", "bf16"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_SN_LDSB1_AFC1_MIAV0_MIWT2_1", "no", "bf16"),
    ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1_AFC1", "yes", "fp32"),
    ("triton_poi_fused_addmm_silu_2", "no", None),
    ("triton_red_fused__scaled_dot_product_flash_attention_moe_forward_0", "no", None),
    ("triton_tem_fused_addmm_7", "yes", None),
    ("_matmul_ogs_NNT_bf16xfp8e4m3xmxfp4_128x256x128x1", "yes", "fp8"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "yes", "bf16"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cutlass::float_e4m3_t, float>>>", "yes", "fp8"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>::Params)", "yes", "tf32"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm75>::Params)", "no", "fp32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensor_core", "dtype"), TENSOR_CORES)
def test_tensor_cores_and_dtype(name: str, tensor_core: str, dtype: str | None) -> None:
    found = classify(name)
    assert (found.tensor_core, found.dtype) == (tensor_core, dtype)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        # names that hold another family's word
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)", "comm"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>", "kv_cache"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)", "embedding"),
        ("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16, float, 7168u> >(Params)", "norm"),
        ("void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int)", "conv"),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm_xdl", "conv"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_3", "fused_triton"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<X>>>", "attention"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, Epilogue>", "softmax"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float>)", "sort_scan"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >", "elementwise"),
    ],
)  # fmt: skip
def test_categories_that_naive_words_get_wrong(name: str, category: str) -> None:
    assert classify(name).category == category


def test_the_kv_cache_type_is_not_the_compute_type() -> None:
    """Fp8KVCacheDataType stands in the name of every paged kernel, whatever its types are."""
    name = (
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>"
    )
    assert classify(name).dtype == "bf16"
    assert classify("void vllm::rms_norm_kernel<c10::BFloat16, (vllm::Fp8KVCacheDataType)1>").dtype == "bf16"


FA2 = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, T<1> >"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (f"{FA2}, false, false, false, false, true, false, true, false>(flash::Flash_fwd_params)", "decode:medium"),
        (f"{FA2}, true, false, false, false, true, false, true, false>(flash::Flash_fwd_params)", "prefill:medium"),
        (f"{FA2}, true, false, false, false, true, false, false, false>(flash::Flash_fwd_params)", "prefill:medium"),
        (f"{FA2}, false, false, false, false, true, false, false, false>(flash::Flash_fwd_params)", None),
        (f"{FA2}, (bool)0, (bool)0, (bool)0, (bool)0, (bool)1, (bool)0, (bool)1, (bool)0>(Params)", "decode:medium"),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ8Kv128PersistentSwapsAbForGen", "decode:strong"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "prefill:strong"),
        ("kernel_unified_attention_3d", "decode:strong"),
        ("kernel_unified_attention_2d", None),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn", None),
    ],
)  # fmt: skip
def test_phase_hints(name: str, hint: str | None) -> None:
    assert classify(name).phase_hint == hint


def _activity(names: list[int], kinds: list[int], on_cpu: bool = False) -> Activity:
    count = len(names)
    table = pd.DataFrame({
        "name": np.array(names, np.int32), "kind": np.array(kinds, np.int8),
        "start_ns": np.arange(count, dtype=np.int64), "duration_ns": np.ones(count, np.int64),
    })  # fmt: skip
    return Activity(table, on_cpu)


STRINGS = ("Memcpy DtoD (Device -> Device)", "ampere_sgemm_128x64_nn", "unheard_of", "aten::addmm", "fill me")


def test_classes_of_a_trace() -> None:
    trace = replace(lines.trace(), strings=STRINGS)
    found = classes(trace, _activity([2, 1, 0, 1, 4], [KERNEL, KERNEL, MEMCPY, KERNEL, MEMSET]))
    assert list(found.columns) == list(COLUMNS)
    assert list(found.index) == [0, 1, 2, 4]
    assert found["category"].to_dict() == {0: "memcpy", 1: "gemm", 2: "other", 4: "memset"}
    assert found["tensor_core"].to_dict() == {0: "no", 1: "no", 2: "maybe", 4: "no"}
    assert found.loc[1, "dtype"] == "fp32"
    assert found.loc[2, "dtype"] is None
    assert all(found[column].dtype == object for column in COLUMNS)


def test_classes_of_an_empty_activity() -> None:
    found = classes(lines.trace(), _activity([], []))
    assert found.empty
    assert list(found.columns) == list(COLUMNS)


def test_ops_on_a_cpu_are_no_kernels() -> None:
    trace = replace(lines.trace(), strings=STRINGS)
    found = classes(trace, _activity([3, 1], [KERNEL, KERNEL], on_cpu=True))
    assert set(found["category"]) == {"other"}
    assert set(found["tensor_core"]) == {"no"}
