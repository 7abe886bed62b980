"""Makes the benchmarks' input: a Kineto trace of one prompt and its decode steps, in the layout Kineto writes.

Eager bf16 Llama with 32 layers as the Hugging Face model runs it: nested operators with shapes, launches, kernels, flow
arrows. Times, ids and the growing context differ from step to step. What could be wrong: recorded traces vary more in
their names and shapes, so that this one compresses better and its texts are interned faster.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 14336, 32, 32, 8, 128, 128256
PROMPT = 512
_HOST, _DEVICE = 4242, 0
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}<c10::BFloat16>, std::array<char*, 3ul> >"
    "(int, at::native::{}<c10::BFloat16>, std::array<char*, 3ul>)"
)
_GEMM = "nvjet_tst_{}x64_64x8_2x1_v_bz_TNT"
_FLASH = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 64, 64, 4, cutlass::bfloat16_t> >, false, {}, false, false, true, true, false>"
    "(Flash_fwd_params)"
)
_TYPE = {2: '"c10::BFloat16", "c10::BFloat16"', 1: '"c10::BFloat16"', 3: ", ".join(['"c10::BFloat16"'] * 3)}
_HEADER = (
    '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA H100 80GB HBM3", '
    '"totalGlobalMem": 85000000000,\n      "computeMajor": 9, "computeMinor": 0,\n      "maxThreadsPerBlock": 1024, '
    '"warpSize": 32,\n      "numSms": 132\n    }\n  ],\n  "record_shapes": 1,\n  "traceName": "trace.json",\n'
    '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1759572642000000000,\n  "traceEvents": ['
)

Shape = tuple[int, ...]
Call = tuple[tuple[str, ...], tuple[Shape, ...], str, int, float]
"""Nested operators from the outside in, shapes of their tensors, the kernel, its blocks, its microseconds."""


def _elementwise(op: str, functor: str, *shapes: Shape) -> Call:
    blocks = max(1, shapes[0][-1] * shapes[0][-2] // 1024)
    return (f"aten::{op}",), shapes, _ELEMENTWISE.format(functor, functor), blocks, 1.6 + blocks / 900


def _linear(tokens: int, width: int, out: int) -> Call:
    shapes = ((tokens, width), (width, out))
    took = max(width * out * 2 / 2.6e6, tokens * width * out * 2 / 6e8)
    return ("aten::linear", "aten::matmul", "aten::mm"), shapes, _GEMM.format(min(256, out // 64)), out // 64, took


def _norm(tokens: int) -> list[Call]:
    x = (1, tokens, HIDDEN)
    return [
        _elementwise("pow", "pow_tensor_scalar_kernel", x),
        _elementwise("mean", "MeanOps", x),
        _elementwise("add", "CUDAFunctorOnSelf_add", (1, tokens, 1)),
        _elementwise("rsqrt", "rsqrt_kernel_cuda", (1, tokens, 1)),
        _elementwise("mul", "BinaryFunctor_mul", x, (1, tokens, 1)),
        _elementwise("mul", "BinaryFunctor_mul", (HIDDEN, 1), x),
    ]


def _layer(tokens: int, context: int) -> list[Call]:
    calls = _norm(tokens)
    calls += [_linear(tokens, HIDDEN, heads * HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    for heads in (HEADS, KV_HEADS):
        x = (1, heads, tokens, HEAD_DIM)
        calls += [_elementwise(op, f"{op}_kernel_cuda", x, x) for op in ("mul", "neg", "cat", "mul", "add")]
    cache = (1, KV_HEADS, context, HEAD_DIM)
    calls += [_elementwise("cat", "CatArrayBatchedCopy", cache, cache) for _ in range(2)]
    query, keys = (1, HEADS, tokens, HEAD_DIM), (1, HEADS, context, HEAD_DIM)
    names = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_flash_attention_forward")
    calls.append((
        tuple(f"aten::{name}" for name in names), (query, keys, keys),
        _FLASH.format("true" if tokens > 1 else "false"), (tokens + 127) // 128 * HEADS, 3 + tokens * context / 9000,
    ))  # fmt: skip
    calls.append(_linear(tokens, HIDDEN, HIDDEN))
    residual = _elementwise("add", "CUDAFunctor_add", (1, tokens, HIDDEN), (1, tokens, HIDDEN))
    calls += [residual, *_norm(tokens), _linear(tokens, HIDDEN, FFN), _linear(tokens, HIDDEN, FFN)]
    wide = (1, tokens, FFN)
    calls += [_elementwise("silu", "silu_kernel", wide), _elementwise("mul", "BinaryFunctor_mul", wide, wide)]
    return [*calls, _linear(tokens, FFN, HIDDEN), residual]


def _pass(tokens: int, context: int) -> Iterator[Call]:
    ids = ((VOCABULARY, HIDDEN), (1, tokens))
    yield ("aten::embedding", "aten::index_select"), ids, "void at::native::indexSelectLargeIndex<>()", tokens, 2.0
    layer = _layer(tokens, context)
    for _ in range(LAYERS):
        yield from layer
    yield from _norm(tokens)
    yield _linear(1, HIDDEN, VOCABULARY)
    yield ("aten::argmax",), ((1, VOCABULARY),), "void at::native::reduce_kernel<512, 1, ArgMaxOps>()", 126, 9.0


class _Writer:
    """Texts of the events of one run, on one host thread and one stream."""

    def __init__(self) -> None:
        self._host, self._device = 1_000_000.0, 1_000_000.0
        self._id = 1000

    def forward(self, tokens: int, context: int) -> Iterator[str]:
        for call in _pass(tokens, context):
            yield from self._call(*call)
        wait = max(5.0, self._device - self._host)
        self._id += 1
        yield _event("cuda_runtime", "cudaStreamSynchronize", _HOST, _HOST, self._host, wait,
                     f'"External id": {self._id}, "cbid": 131, "correlation": {self._id}')  # fmt: skip
        self._host += wait + 80.0

    def _call(
        self, ops: tuple[str, ...], shapes: tuple[Shape, ...], kernel: str, blocks: int, took: float
    ) -> Iterator[str]:
        self._id += 1
        begin, spent, ident = self._host, 3.0 * len(ops) + 4.0, self._id
        dims, types = ", ".join(str(list(shape)) for shape in shapes), _TYPE[len(shapes)]
        concrete = ", ".join(['""'] * len(shapes))
        args = (
            f'"External id": {ident},"Sequence number": {ident % 7919}, "Fwd thread id": 0, "Record function id": 0, '
            f'"Ev Idx": {ident},"Concrete Inputs": [{concrete}], "Input type": [{types}], "Input Dims": [{dims}]'
        )
        for depth, name in enumerate(ops):
            yield _event("cpu_op", name, _HOST, _HOST, begin + depth * 1.25, spent - depth * 2.375, args)
        called = begin + len(ops) * 1.25 + 0.5
        start = max(called + 4.2, self._device + 0.9)
        launch = f'"External id": {ident},"cbid": 211, "correlation": {ident}'
        yield _event("cuda_runtime", "cudaLaunchKernel", _HOST, _HOST, called, 2.621, launch)
        yield _flow("s", ident, _HOST, _HOST, called)
        yield _event("kernel", kernel, _DEVICE, 7, start, took, _launch_shape(ident, blocks))
        yield _flow("f", ident, _DEVICE, 7, start)
        self._host, self._device = begin + spent + 1.875, start + took


def _launch_shape(ident: int, blocks: int) -> str:
    return (
        f'"External id": {ident},"queued": 0, "device": 0, "context": 1,\n      "stream": 7, "correlation": {ident},\n'
        f'      "registers per thread": 32, \n      "shared memory": 0,\n      "blocks per SM": {blocks / 132:.6f},\n'
        f'      "warps per SM": {blocks * 4 / 132:.6f},\n      "grid": [{blocks}, 1, 1],\n      "block": [128, 1, 1],\n'
        f'      "est. achieved occupancy %": {min(100, blocks * 100 // 264)}'
    )


def _event(category: str, name: str, pid: int, tid: int, start: float, duration: float, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {start:.3f}, "dur": {duration:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _flow(phase: str, ident: int, pid: int, tid: int, time: float) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {ident}, "pid": {pid}, "tid": {tid}, "ts": {time:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def generate(path: Path, size: int) -> int:
    """Write a trace of at least `size` bytes of JSON, gzip-compressed, in whole forward passes; its exact size."""
    writer = _Writer()
    written = tokens = 0
    with gzip.open(path, "wb", compresslevel=4) as file:
        written += file.write(_HEADER.encode())
        separator = "\n"
        while written < size:
            events = writer.forward(*((1, PROMPT + tokens) if tokens else (PROMPT, PROMPT)))
            written += file.write((separator + ",\n".join(events)).encode())
            separator = ",\n"
            tokens += 1
        written += file.write(b"\n  ]\n}\n")
    return written
