"""Attention and the cache of keys and values.

A causal mask leaves q k - q^2 / 2 of the q k pairs (half the square where a whole prompt is read, the diagonal
counting half); one query sees all its keys; a sliding window cuts that to the last `window` keys. 4 H P d FLOPs for P
pairs; bytes: queries and output per query head, keys and values once per key head. `kv_bytes` is what attention reads
of the cache. "math" attention multiplies all q k pairs, masked or not. Left out: soft caps, sinks' own work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.simulate import names, vector, views
from traceanalyzer.simulate.cost import Launching, Work
from traceanalyzer.simulate.program import Argument, Kernel, Op, Scalar, Tensor
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.shard import NONE, PAGE, Shard

_FALSE = Scalar("False")
_QUERY_BLOCK = 64
_KEY_BLOCK = 128
_MOST_SPLITS = 64


@dataclass(frozen=True)
class Slice:
    """One sequence's part of a pass: its new tokens, and its context with them."""

    request: int
    queries: int
    keys: int


def pairs(queries: int, keys: int, window: int | None) -> float:
    """How many (query, key) pairs a causal mask, and a window where there is one, leave."""
    if queries == 1:
        return min(keys, window or keys)
    first = keys - queries  # keys before the first query
    if window is None or keys <= window:
        return queries * keys - queries**2 / 2
    short = max(0, min(queries, window - first))  # queries that do not fill the window yet
    return short * (first + short) - short**2 / 2 + (queries - short) * window


def keys_read(queries: int, keys: int, window: int | None) -> int:
    """How many keys any of the queries sees."""
    return keys if window is None else min(keys, queries + window - 1)


def attend(shard: Shard, slices: Sequence[Slice], rows: tuple[int, ...], window: int | None) -> tuple[Op, ...]:
    """The attention of one layer: the ops after the rotary embedding up to the output projection."""
    if shard.scenario.attention == "math":
        return _math(shard, slices, window)
    one = slices[0]
    alike = all((s.queries, s.keys) == (one.queries, one.keys) for s in slices)
    whole = one.queries == one.keys and (window is None or one.keys <= window)
    if not alike or shard.scenario.kv == "fp8" or shard.scenario.paged or not (whole or one.queries == 1):
        return (_varlen(shard, slices, math.prod(rows), window),)
    return _sdpa(shard, len(slices), one.queries, keys_read(one.queries, one.keys, window), rows)


def _work(shard: Shard, slices: Sequence[Slice], window: int | None) -> Work:
    heads, kv_heads, head = shard.heads, shard.kv_heads, shard.head_dim
    seen = sum(pairs(s.queries, s.keys, window) for s in slices)
    queries = sum(s.queries for s in slices)
    cached = 2 * sum(keys_read(s.queries, s.keys, window) for s in slices) * kv_heads * head * shard.kv_size
    moved = 2 * queries * heads * head * shard.size + cached
    sinks = heads * shard.size * shard.model.attention_sinks
    return Work(4 * heads * seen * head, moved + sinks, shard.dtype, True, sinks, cached)


def _traits(shard: Shard, blocks: tuple[int, int], space: str) -> str:
    head = next(size for size in (32, 64, 96, 128, 192, 256) if size >= shard.head_dim)
    numbers = f"{head}, {blocks[0]}, {blocks[1]}, 4"
    element = names.CUTLASS[shard.dtype]
    kernel = f"{space}Flash_kernel_traits<{numbers}, {element}>"
    return f"{space}Flash_fwd_kernel_traits<{numbers}, false, false, {element}, {kernel} >"


def _sdpa(shard: Shard, batch: int, queries: int, keys: int, rows: tuple[int, ...]) -> tuple[Op, ...]:
    """aten::scaled_dot_product_attention of sequences of one length, with its flash kernels."""
    heads, kv_heads, head = shard.heads, shard.kv_heads, shard.head_dim
    causal = Scalar(str(queries > 1))
    q = _heads_first(shard, batch, queries, heads)
    k = _heads_first(shard, batch, keys, kv_heads)
    scale = Scalar(f"{head**-0.5:.17g}")
    grouped = Scalar(str(heads != kv_heads))
    turned = [views.transpose(shard, one, 1, 2) for one in (q, k, k)]
    forward = vector.op(
        shard,
        "aten::_flash_attention_forward",
        (
            *(tensor for _, tensor in turned),
            *(NONE, NONE, Scalar(str(queries)), Scalar(str(keys)), Scalar("0."), causal, _FALSE, scale),
            *(NONE, NONE, NONE, NONE),
        ),
        *_flash_kernels(shard, batch, queries, keys),
    )
    flash = Op(
        "aten::_scaled_dot_product_flash_attention",
        (q, k, k, Scalar("0."), causal, _FALSE, scale),
        (*(view for view, _ in turned), forward),
        shard.view_ns,
    )
    whole = Op(
        "aten::scaled_dot_product_attention",
        (q, k, k, NONE, Scalar("0."), causal, scale, grouped),
        (flash,),
        shard.view_ns,
    )
    back, _ = views.transpose(shard, q, 1, 2)
    joined = views.reshape(shard, shard.tensor(batch, queries, heads, head), (*rows, heads * head))[0]
    return (whole, back, joined)


def _heads_first(shard: Shard, batch: int, length: int, heads: int) -> Tensor:
    """(B, H, S, D) as a view of (B, S, H, D)."""
    head = shard.head_dim
    strides = (length * heads * head, head, heads * head, 1)
    return shard.tensor(batch, heads, length, head, strides=strides)


def _flash_kernels(shard: Shard, batch: int, queries: int, keys: int) -> tuple[Kernel, ...]:
    """The flash kernel, and where few sequences' keys are split over the card, the one that joins the parts."""
    work = _work(shard, [Slice(0, queries, keys)] * batch, None)
    sms = shard.card.gpu.num_sms
    if queries > 1:
        grid = (math.ceil(queries / _KEY_BLOCK), batch, shard.heads)
        traits = _traits(shard, (128, 64), "pytorch_flash::")
        name = f"void pytorch_flash::flash_fwd_kernel<{traits}, false, true, false, false, false, true, false, false>"
        launching = Launching(grid, (128, 1, 1), 255, 81_920)
        return (shard.card.kernel(f"{name}(pytorch_flash::Flash_fwd_params)", "attention", work, launching),)
    blocks = batch * shard.kv_heads
    scenario = shard.scenario
    # A graph keeps the grid it was captured with, which is that of the longest context.
    longest = keys if scenario.mode == "eager" else scenario.prompt + scenario.output
    splits = _splits(blocks, longest, sms) if scenario.split_kv else 1
    traits = _traits(shard, (_QUERY_BLOCK, _KEY_BLOCK), "pytorch_flash::")
    if splits == 1:
        name = f"void pytorch_flash::flash_fwd_kernel<{traits}, false, false, false, false, false, true, false, false>"
        launching = Launching((1, batch, shard.kv_heads), (128, 1, 1), 255, 81_920)
        fill = min(1.0, blocks / sms)
        return (shard.card.kernel(f"{name}(pytorch_flash::Flash_fwd_params)", "attention", work, launching, fill),)
    name = f"void pytorch_flash::flash_fwd_splitkv_kernel<{traits}, false, false, false, false, true, false, true"
    launching = Launching((1, splits, blocks), (128, 1, 1), 255, 81_920)
    main = shard.card.kernel(f"{name}, false>(pytorch_flash::Flash_fwd_params)", "attention", work, launching)
    return main, _combine(shard, batch, queries, splits, traits)


def _splits(blocks: int, keys: int, sms: int) -> int:
    """Into how many parts the keys are split: enough to fill the card, never finer than a block of keys."""
    if blocks >= 0.8 * sms:
        return 1
    return max(1, min(_MOST_SPLITS, sms // blocks, math.ceil(keys / _KEY_BLOCK)))


def _combine(shard: Shard, batch: int, queries: int, splits: int, traits: str) -> Kernel:
    """Adds up the parts: reads one fp32 row and its log-sum per part, query and head, writes the output."""
    count = batch * queries * shard.heads
    moved = 4 * splits * count * (shard.head_dim + 1) + count * shard.head_dim * shard.size
    flops = 2 * splits * count * shard.head_dim
    depth = max(1, math.ceil(math.log2(splits)))
    name = f"void pytorch_flash::flash_fwd_splitkv_combine_kernel<{traits}, 4, {depth}, true>"
    launching = Launching((math.ceil(count / 4), 1, 1), (128, 1, 1), 48, 2_112)
    work = Work(flops, moved, "fp32")
    return shard.card.kernel(f"{name}(pytorch_flash::Flash_fwd_params)", "attention_combine", work, launching)


def pool(shard: Shard) -> Tensor:
    """The paged cache of one layer: pages for every request's whole length."""
    return Tensor((pages(shard.scenario), PAGE, shard.kv_heads, shard.head_dim), shard.kv_word)


def pages(scenario: Scenario) -> int:
    """How many pages hold every request's whole length."""
    length = scenario.prompt + scenario.output + scenario.speculate
    return 1 + scenario.batch * math.ceil(length / PAGE)


def _varlen(shard: Shard, slices: Sequence[Slice], tokens: int, window: int | None) -> Op:
    """Attention over sequences of several lengths: the recorded shapes do not tell how long each is.

    `tokens` is how many rows there are, with padding, whose queries attend to nothing.
    """
    heads, head = shard.heads, shard.head_dim
    longest_query, longest = max(s.queries for s in slices), max(s.keys for s in slices)
    work = _work(shard, slices, window)
    blocks = sum(math.ceil(s.queries / _QUERY_BLOCK) for s in slices) * shard.kv_heads
    few = longest_query == 1 and not shard.scenario.split_kv
    fill = min(1.0, blocks / shard.card.gpu.num_sms) if few else 1.0
    q, cache = shard.tensor(tokens, heads, head), pool(shard)
    if shard.scenario.kv == "fp8":
        k = shard.tensor(tokens, shard.kv_heads, head)
        grid = (tokens // _queries_per_block(shard) + len(slices), shard.kv_heads, 1)
        launching = Launching(grid, (128, 1, 1), 255, 65_536)
        done = shard.card.kernel("kernel_unified_attention_2d", "attention", work, launching, fill)
        arguments: tuple[Argument, ...] = (q, k, k, q, Scalar("model.layers.attn", ""), NONE, NONE)
        return vector.op(shard, "vllm::unified_attention_with_output", arguments, done)
    starts = Tensor((len(slices) + 1,), "int")
    used = Tensor((len(slices),), "int")
    table = Tensor((len(slices), math.ceil(longest / PAGE)), "int")
    traits = _traits(shard, (_QUERY_BLOCK, _KEY_BLOCK), "")
    flags = f"{str(longest_query > 1 and window is None).lower()}, {str(window is not None).lower()}"
    name = f"void flash::flash_fwd_splitkv_kernel<{traits}, {flags}, false, false, true, false, false, false>"
    # One query of all heads that share a key head makes one block, but not in a window (flash_api.cpp: ngroups).
    grouped = longest_query == 1 and window is None
    grid = (math.ceil(longest_query / _QUERY_BLOCK), len(slices), shard.kv_heads if grouped else heads)
    done = shard.card.kernel(
        f"{name}(flash::Flash_fwd_params)", "attention", work, Launching(grid, (128, 1, 1), 255, 81_920), fill
    )
    left, right = ("-1", "-1") if window is None else (str(window - 1), "0")
    lengths = (str(longest_query), str(longest))
    arguments = (
        *(q, cache, cache, q, starts, starts, used, NONE, table, NONE),
        *map(Scalar, (*lengths, "0.", f"{head**-0.5:.17g}", "False", "True", left, right, "0.", "False", "0")),
        NONE,
    )
    return vector.op(shard, "_vllm_fa2_C::varlen_fwd", arguments, done)


def _queries_per_block(shard: Shard) -> int:
    """Tokens per block of vLLM's unified attention: 16 rows hold the query heads of one key head for each token.

    Source: `vllm/v1/attention/ops/triton_unified_attention.py`.
    """
    shared = shard.heads // shard.kv_heads
    rows = 16 if shared <= 16 else 1 << (shared - 1).bit_length()
    return rows // shared


def _math(shard: Shard, slices: Sequence[Slice], window: int | None) -> tuple[Op, ...]:
    """Attention as two batched products and a softmax, keys and values repeated for every query head first."""
    one, batch = slices[0], len(slices)
    queries, keys = one.queries, keys_read(one.queries, one.keys, window)
    heads, head = shard.heads, shard.head_dim
    repeated = heads != shard.kv_heads
    cached = batch * keys * shard.kv_heads * head * shard.kv_size
    ops: list[Op] = []
    if repeated:
        held = shard.tensor(batch, shard.kv_heads, 1, keys, head)
        for _ in range(2):
            view, wide = views.expand(shard, held, (batch, shard.kv_heads, heads // shard.kv_heads, keys, head))
            ops += [view, vector.clone(shard, wide, cached // shard.size, cached)[0]]
    left = 0 if repeated else cached
    scores = shard.tensor(batch, heads, queries, keys)
    ops.append(_bmm(shard, batch, (queries, keys, head), left))
    mul = names.elementwise(names.binary("Mul", shard.dtype), views.numel(scores))
    count = views.numel(scores)
    scaled = vector.kernel(shard, mul, "softmax", count, 2 * count * shard.size, shard.dtype)
    ops.append(vector.op(shard, "aten::mul", (scores, Tensor((), "double")), scaled))
    if queries > 1:
        mask = shard.tensor(batch, 1, queries, keys)
        ops.append(
            vector.simple(
                shard, "aten::add", names.binary("Add", shard.dtype), (scores, mask), "softmax", (Scalar("1"),)
            )
        )
    ops.append(vector.softmax(shard, scores))
    if shard.dtype != "fp32":
        ops.append(vector.cast(shard, Tensor(scores.dims, "float"), shard.dtype)[0])
    ops.append(_bmm(shard, batch, (queries, head, keys), left))
    out = shard.tensor(batch, heads, queries, head)
    view, turned = views.transpose(shard, out, 1, 2)
    return (*ops, view, vector.clone(shard, turned)[0])


def _bmm(shard: Shard, batch: int, shape: tuple[int, int, int], cached: float) -> Op:
    """aten::matmul over every sequence and head; `shape` is (m, n, k) of one product."""
    m, n, k = shape
    many = batch * shard.heads
    work = Work(
        2 * many * m * n * k,
        many * shard.size * (m * k + k * n + m * n),
        shard.dtype,
        shard.dtype != "fp32" and m > 1,
        kv_bytes=cached,
    )
    if m == 1:
        name, launching = names.gemv(shard.dtype, n)
    else:
        name, launching = (
            names.gemm(shard.card.gpu, shard.dtype, m, n) if work.tensor_core else names.sgemm(shard.card.gpu, m, n)
        )
    grid = (launching.grid[0], launching.grid[1], many)
    launching = Launching(grid, launching.block, launching.registers, launching.shared_memory)
    done = shard.card.kernel(name, "attention", work, launching)
    a, b = shard.tensor(many, m, k), shard.tensor(many, k, n)
    left, right = shard.tensor(batch, shard.heads, m, k), shard.tensor(batch, shard.heads, k, n)
    return Op("aten::matmul", (left, right), (vector.op(shard, "aten::bmm", (a, b), done),), shard.view_ns)


def concatenate(shard: Shard, slices: Sequence[Slice]) -> tuple[Op, ...]:
    """New keys and values appended to a cache by copying all of it; the prompt's are the first, and are not copied."""
    one = slices[0]
    return () if one.queries == one.keys else (_cat(shard, len(slices), one),) * 2


def store(shard: Shard, rows: int, tokens: int) -> tuple[Op, ...]:
    """New keys and values written into a paged cache in place; rows that are no tokens have no slot and are skipped."""
    kv_heads, head = shard.kv_heads, shard.head_dim
    count = tokens * kv_heads * head
    moved = 2 * count * (shard.size + shard.kv_size) + 8 * rows
    cpp = names.CPP[shard.dtype]
    kind, mode = ("unsigned char", 1) if shard.scenario.kv == "fp8" else (cpp, 0)
    name = f"void vllm::reshape_and_cache_flash_kernel<{cpp}, {kind}, (vllm::Fp8KVCacheDataType){mode}>({cpp} const*, "
    name += f"{cpp} const*, {kind}*, {kind}*, long const*, long, long, long, long, long, int, int, int, float const*, "
    launching = Launching((rows, 1, 1), (min(512, kv_heads * head), 1, 1), 32)
    done = vector.kernel(shard, (name + "float const*)", launching), "kv_write", 0, moved, shard.dtype)
    new, cache, one_scale = shard.tensor(rows, kv_heads, head), pool(shard), Tensor((), "float")
    kind_argument = Scalar("fp8" if shard.scenario.kv == "fp8" else "auto", "")
    arguments = (new, new, cache, cache, Tensor((rows,), "long int"), kind_argument, one_scale, one_scale)
    return (vector.op(shard, "_C_cache_ops::reshape_and_cache_flash", arguments, done),)


def _cat(shard: Shard, batch: int, one: Slice) -> Op:
    old = shard.tensor(batch, shard.kv_heads, one.keys - one.queries, shard.head_dim)
    new = shard.tensor(batch, shard.kv_heads, one.queries, shard.head_dim)
    moved = 2 * shard.size * (views.numel(old) + views.numel(new))
    opaque = f"at::native::(anonymous namespace)::OpaqueType<{shard.size}u>"
    name = f"void at::native::(anonymous namespace)::CatArrayBatchedCopy<{opaque}, unsigned int, 4, 64, 64>({opaque}*, "
    name += f"at::native::(anonymous namespace)::CatArrInputTensorMetadata<{opaque}, unsigned int, 64, 64>, "
    name += "at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    launching = Launching((2 * shard.card.gpu.num_sms, 2, 1), (512, 1, 1), 32)
    done = vector.kernel(shard, (name, launching), "kv_cat", 0, moved, shard.dtype)
    return vector.op(shard, "aten::cat", ((old, new), Scalar("-2")), done)
