"""Ops of the vector units: norms, rotary embedding, activations, sums, copies, casts.

FLOPs per the usual counts: one per output of a simple op, four per element of an RMSNorm (five with the residual sum),
eight of a LayerNorm, three of a rotary embedding, five per output of a gated activation, two per number that is
quantised (scaled, clamped); copies have none. Bytes: every input and output once. Left out: Gemma's scaling of the
embeddings and its soft caps, a few per mille of a step.
"""

from __future__ import annotations

import math

from traceanalyzer.simulate import names, views
from traceanalyzer.simulate.cost import SIZES, WORDS, Launching, Work
from traceanalyzer.simulate.program import Argument, Kernel, Launch, Op, Scalar, Tensor
from traceanalyzer.simulate.shard import NONE, Shard, words

_FALSE = Scalar("False")
_CODES = {"bf16": "15", "fp16": "5", "fp32": "6"}
_TOP_THREADS = 1024

Named = tuple[str, Launching]


def op(shard: Shard, name: str, arguments: tuple[Argument, ...], *kernels: Kernel) -> Op:
    """An op that launches these kernels."""
    return Op(name, arguments, tuple(map(Launch, kernels)), shard.host_ns)


def kernel(
    shard: Shard, named: Named, role: str, flops: float | None, moved: float, dtype: str, weights: float = 0
) -> Kernel:
    """A vector kernel that moves this many bytes, `weights` of them weights."""
    return shard.card.kernel(named[0], role, Work(flops, moved, dtype, weight_bytes=weights), named[1])


def simple(
    shard: Shard, name: str, functor: str, inputs: tuple[Tensor, ...], role: str, rest: tuple[Argument, ...]
) -> Op:
    """An elementwise op with one FLOP per output; its output has the shape of the largest input."""
    dtype = next(key for key, word in WORDS.items() if word == inputs[0].dtype)
    out = max(map(views.numel, inputs))
    named = names.broadcast(functor, out) if len({i.dims for i in inputs}) > 1 else names.elementwise(functor, out)
    moved = SIZES[dtype] * (sum(map(views.numel, inputs)) + out)
    return op(shard, name, (*inputs, *rest), kernel(shard, named, role, out, moved, dtype))


def add(shard: Shard, dims: tuple[int, ...]) -> Op:
    """The residual sum of two tensors."""
    tensor = shard.tensor(*dims)
    return simple(shard, "aten::add", names.binary("Add", shard.dtype), (tensor, tensor), "residual", (Scalar("1"),))


def cast(shard: Shard, tensor: Tensor, to: str) -> tuple[Op, Tensor]:
    """aten::to another data type: _to_copy, copy_."""
    result = Tensor(tensor.dims, WORDS[to])
    source = next(key for key, word in WORDS.items() if word == tensor.dtype)
    count = views.numel(tensor)
    named = names.elementwise(names.direct_copy(to), count)
    moved = count * (SIZES[source] + SIZES[to])
    inner = op(shard, "aten::copy_", (result, tensor, _FALSE), kernel(shard, named, "copy", 0, moved, to))
    code = Scalar(_CODES[to])
    made = Op("aten::_to_copy", (tensor, code, NONE, NONE, NONE, _FALSE, NONE), (inner,), shard.view_ns)
    return Op("aten::to", (tensor, code, _FALSE, _FALSE, NONE), (made,), shard.view_ns), result


def clone(shard: Shard, tensor: Tensor, read: int | None = None, kv_bytes: float = 0.0) -> tuple[Op, Tensor]:
    """aten::contiguous of a view: a copy; `read` is how many numbers it reads where an axis is repeated."""
    result = Tensor(tensor.dims, tensor.dtype)
    count = views.numel(tensor)
    name, launching = names.broadcast(names.direct_copy(shard.dtype), count)
    moved = shard.size * (count + (count if read is None else read))
    done = shard.card.kernel(name, "copy", Work(0, moved, shard.dtype, kv_bytes=kv_bytes), launching)
    copying = op(shard, "aten::copy_", (result, tensor, _FALSE), done)
    return Op("aten::clone", (tensor, Scalar("0")), (copying,), shard.view_ns), result


def norm(shard: Shard, dims: tuple[int, ...], *, residual: bool = False) -> tuple[Op, ...]:
    """One norm over the last axis; with `residual` it first adds the residual stream (fused kernels only)."""
    if shard.model.norm != "rmsnorm":
        summed = (add(shard, dims),) if residual else ()
        return (*summed, _layer_norm(shard, dims))
    if not shard.scenario.fused:
        return _rms_chain(shard, dims)
    tensor, weight = shard.tensor(*dims), shard.tensor(dims[-1])
    count, size = math.prod(dims), shard.size
    c10, rows = names.C10[shard.dtype], math.prod(dims[:-1])
    launching = Launching((rows, 1, 1), (min(_TOP_THREADS, max(32, dims[-1] // 8)), 1, 1), 40, 132)
    moved = (4 if residual else 2) * count * size + dims[-1] * size
    if residual:
        name = f"std::enable_if<(((8)>(0)))&&vllm::_typeConvert<{c10}>::exists, void>::type "
        name += f"vllm::fused_add_rms_norm_kernel<{c10}, 8>({c10}*, long, {c10}*, {c10} const*, float, int, int)"
        done = kernel(shard, (name, launching), "norm", 5 * count, moved, shard.dtype, dims[-1] * size)
        return (op(shard, "_C::fused_add_rms_norm", (tensor, tensor, weight, Scalar("1e-05")), done),)
    name = f"void vllm::rms_norm_kernel<{c10}, 8, 2>({c10}*, {c10} const*, long, long, long, long, long, {c10} const*, "
    done = kernel(shard, (name + "float, int, int)", launching), "norm", 4 * count, moved, shard.dtype, dims[-1] * size)
    return (op(shard, "_C::rms_norm", (tensor, tensor, weight, Scalar("1e-05")), done),)


def _layer_norm(shard: Shard, dims: tuple[int, ...]) -> Op:
    tensor, weight = shard.tensor(*dims), shard.tensor(dims[-1])
    bias: Argument = weight if shard.model.norm == "layernorm" else NONE
    count, rows = math.prod(dims), math.prod(dims[:-1])
    weights = dims[-1] * shard.size * (2 if shard.model.norm == "layernorm" else 1)
    c10 = names.C10[shard.dtype]
    name = f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{c10}, float>(int, float, "
    name += f"{c10} const*, {c10} const*, {c10} const*, float*, float*, {c10}*)"
    launching = Launching((rows, 1, 1), (32, 4, 1), 40, 24)
    done = kernel(shard, (name, launching), "norm", 8 * count, 2 * count * shard.size + weights, shard.dtype, weights)
    shape = Scalar(words((dims[-1],)), "ScalarList")
    epsilon = Scalar("1.0000000000000001e-05")
    inner = op(shard, "aten::native_layer_norm", (tensor, shape, weight, bias, epsilon), done)
    return Op("aten::layer_norm", (tensor, shape, weight, bias, epsilon, Scalar("False")), (inner,), shard.view_ns)


def _rms_chain(shard: Shard, dims: tuple[int, ...]) -> tuple[Op, ...]:
    """An RMSNorm as a chain in fp32: cast, square, mean, epsilon, rsqrt, scale, cast back, weight."""
    tensor, weight = shard.tensor(*dims), shard.tensor(dims[-1])
    count, rows = math.prod(dims), math.prod(dims[:-1])
    wide, mean = Tensor(dims, "float"), Tensor((*dims[:-1], 1), "float")
    half = shard.dtype != "fp32"
    there = (cast(shard, tensor, "fp32")[0],) if half else ()
    back = (cast(shard, wide, shard.dtype)[0],) if half else ()
    power = "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, "
    power += "float)::{lambda(float)#1}"
    averaged = kernel(shard, names.reduction("Mean", "fp32", rows), "norm", count, 4 * (count + rows), "fp32")
    last = names.broadcast(names.binary("Mul", shard.dtype), count)
    moved = shard.size * (2 * count + dims[-1])
    return (
        *there,
        simple(shard, "aten::pow", power, (wide,), "norm", (Scalar("2"),)),
        op(shard, "aten::mean", (wide, Scalar("[-1]", "ScalarList"), Scalar("True"), NONE), averaged),
        simple(
            shard,
            "aten::add",
            "at::native::CUDAFunctorOnSelf_add<float>",
            (mean,),
            "norm",
            (Tensor((), "double"), Scalar("1")),
        ),
        simple(shard, "aten::rsqrt", names.unary("rsqrt", "fp32"), (mean,), "norm", ()),
        simple(shard, "aten::mul", names.binary("Mul", "fp32"), (wide, mean), "norm", ()),
        *back,
        op(
            shard,
            "aten::mul",
            (weight, tensor),
            kernel(shard, last, "norm", count, moved, shard.dtype, dims[-1] * shard.size),
        ),
    )


def gated(shard: Shard, rows: tuple[int, ...], width: int) -> tuple[Op, ...]:
    """The gated activation of one merged matrix's output: one kernel, or an activation and a product."""
    count, activation = math.prod(rows) * width, shard.activation
    out, both = shard.tensor(*rows, width), shard.tensor(*rows, 2 * width)
    if not shard.scenario.fused:
        return (
            simple(shard, f"aten::{activation}", names.unary(activation, shard.dtype), (out,), "activation", ()),
            simple(shard, "aten::mul", names.binary("Mul", shard.dtype), (out, out), "activation", ()),
        )
    c10 = names.C10[shard.dtype]
    kind = "silu" if activation == "silu" else "gelu_tanh"
    name = f"void vllm::act_and_mul_kernel<{c10}, &({c10} vllm::{kind}_kernel<{c10}>({c10} const&)), true>"
    launching = Launching((math.prod(rows), 1, 1), (min(_TOP_THREADS, width), 1, 1), 32)
    done = kernel(
        shard,
        (f"{name}({c10}*, {c10} const*, int)", launching),
        "activation",
        5 * count,
        3 * count * shard.size,
        shard.dtype,
    )
    return (op(shard, f"_C::{kind}_and_mul", (out, both), done),)


def plain_activation(shard: Shard, rows: tuple[int, ...], width: int) -> Op:
    """The activation of an MLP without a gate."""
    tensor = shard.tensor(*rows, width)
    kind = shard.activation
    return simple(shard, f"aten::{kind}", names.unary(kind, shard.dtype), (tensor,), "activation", ())


def embedding(shard: Shard, rows: tuple[int, ...], table: int) -> Op:
    """aten::embedding: rows of a table, one per token."""
    tokens, hidden = math.prod(rows), shard.model.hidden
    weight, ids = shard.tensor(table, hidden), Tensor(rows, "long int")
    flat = Tensor((tokens,), "long int")
    c10 = names.C10[shard.dtype]
    kind = "indexSelectSmallIndex" if tokens <= 16 else "indexSelectLargeIndex"
    name = f"void at::native::(anonymous namespace)::{kind}<{c10}, long, unsigned int, 2, 2, -2>(...)"
    launching = Launching((min(1056, math.ceil(tokens * hidden / 128)), 1, 1), (128, 1, 1), 32)
    done = kernel(shard, (name, launching), "embedding", 0, 2 * tokens * hidden * shard.size + 8 * tokens, shard.dtype)
    taking = op(shard, "aten::index_select", (weight, Scalar("0"), flat), done)
    arguments = (weight, ids, Scalar("-1"), _FALSE, _FALSE)
    body = (
        views.reshape(shard, ids, (tokens,), "aten::reshape")[0],
        taking,
        views.reshape(shard, shard.tensor(tokens, hidden), (*rows, hidden))[0],
    )
    return Op("aten::embedding", arguments, body, shard.view_ns)


def softmax(shard: Shard, tensor: Tensor) -> Op:
    """aten::softmax over the last axis, computed and kept in fp32."""
    dtype = next(key for key, word in WORDS.items() if word == tensor.dtype)
    count, rows = views.numel(tensor), views.numel(tensor) // tensor.dims[-1]
    c10 = names.C10[dtype]
    name = f"void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, {c10}, float, float, "
    name += f"at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, {c10} const*, int)"
    launching = Launching((rows, 1, 1), (min(_TOP_THREADS, max(32, tensor.dims[-1] // 4)), 1, 1), 32, 4_128)
    done = kernel(shard, (name, launching), "softmax", 5 * count, count * (SIZES[dtype] + 4), "fp32")
    inner = op(shard, "aten::_softmax", (tensor, Scalar("-1"), Scalar(str(dtype != "fp32"))), done)
    return Op("aten::softmax", (tensor, Scalar("-1"), Scalar("6")), (inner,), shard.view_ns)
