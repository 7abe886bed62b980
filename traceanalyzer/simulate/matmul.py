"""Linear layers: y = x W^T, with weights as the activations or quantised.

For m rows, n outputs and k inputs: 2 m n k FLOPs (m n more for a bias); bytes m k + n k + m n, each at its own size,
with a quantised weight's scales. One row goes through a matrix-vector kernel off the tensor cores, more through a
GEMM.
"""

from __future__ import annotations

import math

from traceanalyzer.errors import InputError
from traceanalyzer.simulate import names, vector, views
from traceanalyzer.simulate.cost import SIZES, Launching, Work
from traceanalyzer.simulate.program import Argument, Kernel, Op, Scalar, Tensor
from traceanalyzer.simulate.shard import NONE, Shard

#: int4: one 16-bit scale for this many weights of a column; nvfp4: one byte for this many numbers of either operand.
INT4_GROUP = 128
FP4_GROUP = 16
_ONE = Scalar("1")


def linear(shard: Shard, rows: tuple[int, ...], k: int, n: int, *, bias: bool = False, quantised: bool = True) -> Op:
    """aten::linear over inputs of shape `rows` x k, or the quantised layer in its place."""
    kind = shard.scenario.weights if quantised else "same"
    if kind != "same":
        return {"fp8": _fp8, "int8": _int8, "int4": _int4, "fp4": _fp4}[kind](shard, rows, k, n, bias)
    x, weight, m = shard.tensor(*rows, k), shard.tensor(n, k), math.prod(rows)
    transposed, right = views.t(shard, weight)
    flat = len(rows) == 1
    left = shard.tensor(m, k)
    folded = () if flat else (views.reshape(shard, x, (m, k), "aten::reshape")[0],)
    unfold = "aten::view" if bias else "aten::_unsafe_view"
    unfolded = () if flat else (views.reshape(shard, shard.tensor(m, n), (*rows, n), unfold)[0],)
    done = product(shard, m, n, k, bias=bias)
    if bias:
        vec = shard.tensor(n)
        body = (*folded, transposed, vector.op(shard, "aten::addmm", (vec, left, right, _ONE, _ONE), done), *unfolded)
        return Op("aten::linear", (x, weight, vec), body, shard.view_ns)
    inner = (*folded, vector.op(shard, "aten::mm", (left, right), done), *unfolded)
    multiplied = Op("aten::matmul", (x, right), inner, shard.view_ns)
    return Op("aten::linear", (x, weight, NONE), (transposed, multiplied), shard.view_ns)


def product(shard: Shard, m: int, n: int, k: int, *, bias: bool = False) -> Kernel:
    """The kernel of one matrix product in the activations' data type."""
    dtype, size = shard.dtype, shard.size
    weights = (n * k + n * bias) * size
    moved = size * (m * k + m * n) + weights
    flops = 2 * m * n * k + m * n * bias
    if m == 1:
        name, launching = names.gemv(dtype, n)
        return shard.card.kernel(name, "gemv", Work(flops, moved, dtype, weight_bytes=weights), launching)
    tensor_core = dtype != "fp32"
    name, launching = names.gemm(shard.card.gpu, dtype, m, n) if tensor_core else names.sgemm(shard.card.gpu, m, n)
    return shard.card.kernel(name, "gemm", Work(flops, moved, dtype, tensor_core, weights), launching)


def weight_bytes(shard: Shard, n: int, k: int) -> float:
    """Bytes of a quantised n x k weight with its scales, or of an ordinary one.

    Raises:
        InputError: k is no multiple of the group that shares a scale.
    """
    kind = shard.scenario.weights
    group = {"int4": INT4_GROUP, "fp4": FP4_GROUP}.get(kind)
    if group is None:
        return n * k * (shard.size if kind == "same" else 1) + {"int8": n * shard.size, "fp8": 4}.get(kind, 0)
    if k % group:
        raise InputError(
            f"{kind} weights of {shard.model.id} cannot be simulated on {shard.scenario.ranks} ranks",
            f"a matrix has {k} inputs, no multiple of {group}",
        )
    return n * k / 2 + n * k // group * (shard.size if kind == "int4" else 1)


def _biased(shard: Shard, layer: Op, rows: tuple[int, ...], n: int, bias: bool) -> Op:
    """The layer, and its bias as a sum of its own where the kernel takes none."""
    if not bias:
        return layer
    out, vec = shard.tensor(*rows, n), shard.tensor(n)
    count = math.prod(rows) * n
    named = names.broadcast(names.binary("Add", shard.dtype), count)
    moved = shard.size * (2 * count + n)
    done = vector.kernel(shard, named, "residual", count, moved, shard.dtype, n * shard.size)
    summed = vector.op(shard, "aten::add", (out, vec, _ONE), done)
    return Op(f"vllm::{layer.name.rpartition('::')[2]}_bias", (out, vec), (layer, summed), shard.view_ns)


def _fp8(shard: Shard, rows: tuple[int, ...], k: int, n: int, bias: bool) -> Op:
    m = math.prod(rows)
    x, small = shard.tensor(m, k), shard.tensor(m, k, word="c10::Float8_e4m3fn")
    scale = Tensor((), "float")
    c10 = names.C10[shard.dtype]
    name = f"void vllm::scaled_fp8_quant_kernel_strided<{c10}, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*, {c10} const*, "
    launching = Launching((m, 1, 1), (256, 1, 1), 32)
    named = name + "float const*, int, long, long)", launching
    quantise = vector.kernel(shard, named, "quantise", 2 * m * k, m * k * (shard.size + 1) + 4, shard.dtype)
    first = vector.op(shard, "_C::static_scaled_fp8_quant", (small, x, scale), quantise)
    held = weight_bytes(shard, n, k) + n * shard.size * bias
    moved = m * k + 4 + held + m * n * shard.size
    name, launching = names.gemm(shard.card.gpu, "fp8", m, n)
    work = Work(2 * m * n * k + m * n * bias, moved, "fp8", True, held)
    weight = Tensor((k, n), "c10::Float8_e4m3fn", (1, k))
    out = Scalar({"bf16": "15", "fp16": "5"}[shard.dtype])
    given: Argument = shard.tensor(n) if bias else NONE
    arguments = (small, weight, scale, scale, given, NONE, out, Scalar("False"))
    second = vector.op(shard, "aten::_scaled_mm", arguments, shard.card.kernel(name, "gemm", work, launching))
    return Op("vllm::fp8_linear", (shard.tensor(*rows, k), weight), (first, second), shard.view_ns)


def _int8(shard: Shard, rows: tuple[int, ...], k: int, n: int, bias: bool) -> Op:
    m = math.prod(rows)
    held = weight_bytes(shard, n, k)
    work = Work(2 * m * n * k, shard.size * (m * k + m * n) + held, shard.dtype, False, held)
    c10 = names.C10[shard.dtype]
    name = f"void at::native::weight_int8pack_mm_kernel<{c10}>({c10} const*, signed char const*, {c10} const*, {c10}*, "
    launching = Launching((math.ceil(n / 16), math.ceil(m / 16), 1), (16, 16, 1), 40)
    done = shard.card.kernel(name + "int, int, int)", "gemm", work, launching)
    arguments = (shard.tensor(m, k), Tensor((n, k), "signed char"), shard.tensor(n))
    return _biased(shard, vector.op(shard, "aten::_weight_int8pack_mm", arguments, done), rows, n, bias)


def _int4(shard: Shard, rows: tuple[int, ...], k: int, n: int, bias: bool) -> Op:
    m = math.prod(rows)
    held = weight_bytes(shard, n, k)
    work = Work(2 * m * n * k, shard.size * (m * k + m * n) + held, shard.dtype, True, held)
    c10 = names.CPP[shard.dtype]
    name = f"void marlin::Marlin<{c10}, 1125899906909960l, 1125899906908928l, {min(4, math.ceil(m / 16))}, 256, 1, 8, "
    params = "int4 const*, int4 const*, int4*, int4*, int4 const*, int const*, int, int, int, int, int*, bool, int"
    launching = Launching((shard.card.gpu.num_sms, 1, 1), (256, 1, 1), 255, 98_304)
    done = shard.card.kernel(f"{name}8, false, 4, {INT4_GROUP // 16}, false>({params})", "gemm", work, launching)
    packed = Tensor((k // 16, n * 2), "int")
    scales = shard.tensor(k // INT4_GROUP, n)
    none = Tensor((0,), "int")
    sizes = tuple(map(str, (m, n, k)))
    arguments: tuple[Argument, ...] = (
        *(shard.tensor(m, k), NONE, packed, NONE, scales, NONE, none, none, none),
        *(Tensor((shard.card.gpu.num_sms,), "int"), Scalar("1125899906909960")),
        *map(Scalar, sizes),
        *map(Scalar, ("True", "False", "True", "False")),
    )
    return _biased(shard, vector.op(shard, "_C::gptq_marlin_gemm", arguments, done), rows, n, bias)


def _fp4(shard: Shard, rows: tuple[int, ...], k: int, n: int, bias: bool) -> Op:
    m = math.prod(rows)
    held = weight_bytes(shard, n, k)
    packed, scales = m * k / 2, m * k // FP4_GROUP
    x, small = shard.tensor(m, k), Tensor((m, k // 2), "unsigned char")
    blocks = Tensor((m, k // FP4_GROUP), "c10::Float8_e4m3fn")
    c10 = names.CPP[shard.dtype]
    launching = Launching((min(m, 4 * shard.card.gpu.num_sms), 1, 1), (min(512, k // 8), 1, 1), 32)
    name = f"void vllm::cvt_fp16_to_fp4<{c10}, false>(int, int, {c10} const*, float const*, unsigned int*, int*)"
    moved = m * k * shard.size + packed + scales + 4
    quantise = vector.kernel(shard, (name, launching), "quantise", 2 * m * k, moved, shard.dtype)
    one = Tensor((1,), "float")
    first = vector.op(shard, "_C::scaled_fp4_quant", (small, x, blocks, one), quantise)
    tiles = math.ceil(n / 128) * math.ceil(m / 128)
    launching = Launching((min(tiles, shard.card.gpu.num_sms), 1, 1), (384, 1, 1), 168, 213_248)
    work = Work(2 * m * n * k, packed + scales + held + m * n * shard.size + 4, "fp4", True, held)
    name = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    name += "cutlass::nv_float4_t<cutlass::float_e2m1_t>>>(Params)"
    arguments = (
        *(shard.tensor(m, n), small, Tensor((n, k // 2), "unsigned char"), blocks),
        *(Tensor((n, k // FP4_GROUP), "c10::Float8_e4m3fn"), one),
    )
    second = vector.op(shard, "_C::cutlass_scaled_fp4_mm", arguments, shard.card.kernel(name, "gemm", work, launching))
    layer = Op("vllm::fp4_linear", (shard.tensor(*rows, k),), (first, second), shard.view_ns)
    return _biased(shard, layer, rows, n, bias)


def all_reduce(shard: Shard, rows: tuple[int, ...], width: int) -> tuple[Op, ...]:
    """The sum over ranks of a row-parallel layer's output; nothing on one rank.

    A ring sends 2 (n - 1) / n of the tensor over every link.
    """
    ranks = shard.scenario.ranks
    if ranks == 1:
        return ()
    sent = 2 * (ranks - 1) / ranks * math.prod(rows) * width * SIZES[shard.dtype]
    kind = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}[shard.dtype]
    name = f"ncclDevKernel_AllReduce_Sum_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    done = shard.card.collective(name, sent, shard.dtype)
    return (vector.op(shard, "vllm::all_reduce", (shard.tensor(*rows, width), Scalar("tp:0", "")), done),)


def all_gather(shard: Shard, rows: int, width: int) -> tuple[Op, ...]:
    """The logits of all ranks on every rank; a ring sends (n - 1) / n of the whole."""
    ranks = shard.scenario.ranks
    if ranks == 1:
        return ()
    sent = (ranks - 1) * rows * width * SIZES[shard.dtype]
    done = shard.card.collective("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", sent, shard.dtype)
    return (vector.op(shard, "vllm::all_gather", (shard.tensor(rows, width), Scalar("1"), Scalar(str(ranks))), done),)
