"""Names of kernels, as real traces of each architecture have them, and how they are launched.

What could be wrong: a library picks among dozens of kernels by heuristics that change from version to version; here
each shape gets one plausible name whose tile fits it. The second tile number covers the tokens (cuBLAS is
column-major).
"""

from __future__ import annotations

import math

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.simulate.cost import Grid, Launching

#: C++ spellings of data types in kernel names.
CPP = {"bf16": "__nv_bfloat16", "fp16": "__half", "fp32": "float"}
C10 = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float"}
CUTLASS = {"bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t"}
_TENSOR_ITERATOR = "at::TensorIteratorBase&"
_SMALL_BATCH = 32
_AMPERE, _HOPPER, _BLACKWELL, _BLACKWELL_LARGE = 8.0, 9.0, 10.0, 12.0


def generation(gpu: Gpu) -> float:
    """The compute capability of an NVIDIA card as a number: 8.0, 9.0, 12.0."""
    return float(gpu.compute_capability)


def gemm(gpu: Gpu, dtype: str, m: int, n: int) -> tuple[str, Launching]:
    """A tensor-core GEMM of bf16, fp16 or fp8 operands over m tokens and n outputs."""
    if _HOPPER <= generation(gpu) < _BLACKWELL_LARGE:
        return _nvjet(gpu, dtype, m, n)
    wide, tall = (64, 64) if m <= _SMALL_BATCH else (128, 128) if m <= 512 else (256, 128)
    grid = (math.ceil(n / wide), math.ceil(m / tall), 1)
    if dtype == "fp8":
        name = f"sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize{wide}x{tall}x64_stage4_warpsize2x2x1_"
        name += "tensor16x8x32_execute_kernel__5x_cublas"
        return name, Launching(grid, (128, 1, 1), 168, 98_304)
    if generation(gpu) < _AMPERE:
        kind = "volta_fp16_s884gemm_fp16" if generation(gpu) < 7.5 else "turing_fp16_s1688gemm_fp16"
        return f"{kind}_{wide}x{tall}_ldg8_f2f_tn", Launching(grid, (256, 1, 1), 128, 32_768)
    stages = "stages_64x5" if m <= _SMALL_BATCH else "stages_32x5" if m <= 512 else "stages_64x3"
    name = f"ampere_{dtype}_s16816gemm_{dtype}_{wide}x{tall}_ldg8_f2f_{stages}_tn"
    return name, Launching(grid, (128, 1, 1) if wide == 64 else (256, 1, 1), 166, 81_920)


def _nvjet(gpu: Gpu, dtype: str, m: int, n: int) -> tuple[str, Launching]:
    """cuBLAS 12.x on Hopper and Blackwell; its kernels are persistent."""
    letters = {"bf16": "tst", "fp16": "hsh", "fp8": "qqtst"}[dtype]
    if m <= _SMALL_BATCH:
        wide, tall = (192, 8) if m <= 8 else (128, 16) if m <= 16 else (128, 32)
        name = f"nvjet_{letters}_{wide}x{tall}_64x8_4x1_v_bz_TNT"
    else:
        wide, tall = (128, 128) if m <= 512 else (128, 256)
        cluster = "2cta_h_bz" if generation(gpu) >= _BLACKWELL else "v_bz_coopA"
        name = f"nvjet_{letters}_{wide}x{tall}_64x4_2x1_{cluster}_TNT"
    tiles = math.ceil(n / wide) * math.ceil(m / tall)
    return name, Launching((min(tiles, gpu.num_sms), 1, 1), (384, 1, 1), 168, 213_248)


def sgemm(gpu: Gpu, m: int, n: int) -> tuple[str, Launching]:
    """An fp32 GEMM off tensor cores."""
    wide, tall = (32, 32) if m <= _SMALL_BATCH else (128, 64) if m <= 512 else (128, 128)
    family = "volta" if generation(gpu) < _AMPERE else "ampere"
    name = f"{family}_sgemm_{wide}x{tall}{'_sliced1x4' if wide == 32 else ''}_tn"
    return name, Launching((math.ceil(n / wide), math.ceil(m / tall), 1), (128, 1, 1), 122, 49_152)


def gemv(dtype: str, n: int) -> tuple[str, Launching]:
    """A matrix times one vector, off tensor cores."""
    cpp = CPP[dtype]
    operand = f"cublasGemvTensorStridedBatched<{cpp} const>"
    params = f"cublasGemvParamsEx<int, {operand}, {operand}, cublasGemvTensorStridedBatched<{cpp}>, float>"
    name = f"std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, {cpp}, {cpp}, {cpp}, float, false, "
    launching = Launching((math.ceil(n / 4), 1, 1), (128, 1, 1), 60)
    return f"{name}true, true, false, 7, false, {params} >({params})", launching


def elementwise(functor: str, count: int, width: int = 4) -> tuple[str, Launching]:
    """A vectorised elementwise kernel with one functor over this many numbers; grid 512 numbers a block at width 4."""
    name = f"void at::native::vectorized_elementwise_kernel<{width}, {functor}, std::array<char*, 2ul> >"
    return f"{name}(int, {functor}, std::array<char*, 2ul>)", Launching(_blocks(count, 128 * width))


def broadcast(functor: str, count: int) -> tuple[str, Launching]:
    """An elementwise kernel whose operands differ in shape or stride."""
    call = f"at::native::gpu_kernel_impl_nocast<{functor} >({_TENSOR_ITERATOR}, {functor} const&)::{{lambda(int)#1}}"
    name = f"void at::native::elementwise_kernel<128, 4, {call}>(int, {call})"
    return name, Launching(_blocks(count, 512), registers=18)


def binary(kind: str, dtype: str) -> str:
    """The functor of a sum or product of two tensors: "Mul", "Add" or "Div"."""
    c10 = C10[dtype]
    if kind == "Add":
        return f"at::native::CUDAFunctor_add<{c10}>"
    return f"at::native::BinaryFunctor<{c10}, {c10}, {c10}, at::native::binary_internal::{kind}Functor<float> >"


def unary(kind: str, dtype: str) -> str:
    """The functor of a function of one tensor: "silu", "neg", "rsqrt", "gelu", ..."""
    lambdas = "::{lambda()#2}::operator()() const::{lambda()#7}::operator()() const"
    return f"at::native::(anonymous namespace)::{kind}_kernel({_TENSOR_ITERATOR}){lambdas}::{{lambda({C10[dtype]})#1}}"


def direct_copy(dtype: str) -> str:
    """The functor that copies, and converts on the way."""
    lambdas = "::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const"
    return f"at::native::direct_copy_kernel_cuda({_TENSOR_ITERATOR}){lambdas}::{{lambda({C10[dtype]})#1}}"


def reduction(kind: str, dtype: str, rows: int) -> tuple[str, Launching]:
    """A reduction of each row: "Mean" or "ArgMax"."""
    operands = "float, float, float, float" if kind == "Mean" else "float"
    result = "float" if kind == "Mean" else "long"
    c10 = C10[dtype]
    operation = f"at::native::ReduceOp<{c10}, at::native::{kind}Ops<{operands}>, unsigned int, {result}, 4, 4>"
    name = f"void at::native::reduce_kernel<512, 1, {operation} >({operation})"
    return name, Launching((max(1, math.ceil(rows / 16)), 1, 1), (32, 16, 1), 32, 16)


def _blocks(count: int, per_block: int) -> Grid:
    return (max(1, math.ceil(count / per_block)), 1, 1)
