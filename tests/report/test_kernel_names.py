"""Kernel labels on real names, and on names that try to hurt."""

from __future__ import annotations

import time

import pytest

from traceanalyzer.report.views.kernel_names import SHOWN, label, labels

NATIVE = "void at::native::"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            NATIVE + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel add",
        ),
        (
            NATIVE + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
            "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>(int)",
            "elementwise_kernel direct_copy",
        ),
        (
            NATIVE + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
            "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)>(int)",
            "elementwise_kernel Mul",
        ),
        (
            NATIVE
            + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, int, 4> >(x)",
            "reduce_kernel Mean",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align1>(x::Params)",
            "cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align1",
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>, false>(p)",
            "flash_fwd_kernel",
        ),
        ("void (anonymous namespace)::resolve_future_token_ids_kernel<long>(long*)", "resolve_future_token_ids_kernel"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1", "Tensile GEMM MT256x192x64"),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "fused_add_rms_norm_kernel",
        ),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>(x)", "gemvx::kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("aten::mm", "aten::mm"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("_ZN2ck16tensor_operation6device", "_ZN2ck16tensor_operation6device"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_label(name: str, expected: str) -> None:
    assert label(name) == expected


@pytest.mark.parametrize("piece", ["<", "(", "a_kernel", "Functor", "::", "a ", "\x00", "_"])
def test_a_hostile_name_is_labelled_at_once(piece: str) -> None:
    start = time.process_time()
    label("void " + piece * 65_536)
    assert time.process_time() - start < 1.0


def test_names_that_would_read_the_same_are_told_apart() -> None:
    one = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<MulFunctor<float>>>(int)"
    other = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<MulFunctor<c10::BFloat16>>>(int)"
    alone = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(x)"
    assert label(one) == label(other) == "elementwise_kernel Mul"
    assert labels([one, alone, other, one], 64) == [
        "elementwise_kernel Mul [2]", "reduce_kernel Mean", "elementwise_kernel Mul [4]", "elementwise_kernel Mul [2]"
    ]  # fmt: skip


def test_names_cut_in_their_middle_are_told_apart() -> None:
    names = [f"triton_poi_fused_{'x' * 40}_{size}_{'y' * 40}" for size in ("small", "large")]
    shown = labels(names, SHOWN)
    assert len(set(shown)) == 2
    assert max(map(len, shown)) <= SHOWN


def test_names_of_the_same_words_are_numbered() -> None:
    names = ["void k::run<a_type, b_type>(int)", "void k::run<b_type, a_type>(int)"]
    assert labels(names, 64) == ["run [#1]", "run [#2]"]
    shared = "void k::run<" + "x" * 3000
    assert len(set(labels([shared + "1", shared + "2"], 64))) == 2
