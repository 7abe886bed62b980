"""Multi-head latent attention as serving engines run it on Hopper.

The cache holds one latent row of r numbers and a rotary row of p per token, for all heads and whole on every rank.
Prompts are read with keys and values made from the latents of their whole context (H heads of n + p numbers, values of
v): 2 H P (n + p + v) FLOPs for P pairs. Decoding never makes them: queries are taken into the latent space, attention
runs on the latents themselves, and its output is taken back: 2 H k (2 r + p) FLOPs for k keys, whose rows are read
once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from traceanalyzer.catalog.models import LatentAttention
from traceanalyzer.simulate import attention, matmul, names, rotary, vector, views
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.cost import Launching, Work
from traceanalyzer.simulate.program import Argument, Op, Scalar, Tensor
from traceanalyzer.simulate.shard import NONE, PAGE, Shard

Ops = tuple[Op, ...]


def before(shard: Shard, mla: LatentAttention, rows: int) -> Ops:
    """Queries and latents, their norms, rotary embedding."""
    hidden, rank = shard.model.hidden, mla.kv_lora_rank
    latent, queries = rank + mla.qk_rope, shard.heads * (mla.qk_nope + mla.qk_rope)
    if mla.q_lora_rank is None:
        ops: Ops = (matmul.linear(shard, (rows,), hidden, queries), matmul.linear(shard, (rows,), hidden, latent))
    else:
        ops = (matmul.linear(shard, (rows,), hidden, mla.q_lora_rank + latent),)
        ops += vector.norm(shard, (rows, mla.q_lora_rank))
        ops += (matmul.linear(shard, (rows,), mla.q_lora_rank, queries),)
    ops += vector.norm(shard, (rows, rank))
    return (*ops, rotary.fused(shard, rows, (shard.heads, 1), mla.qk_rope, queries))


def attend(shard: Shard, mla: LatentAttention, slices: Sequence[Slice], padding: int = 0) -> Ops:
    """The attention of one layer: prompts with keys and values of their own, decoding sequences on the latents.

    So many rows of padding are taken into the latent space and back with the decoding ones.
    """
    reading = [s for s in slices if s.queries > 1]
    decoding = [s for s in slices if s.queries == 1]
    ops: Ops = ()
    if reading:
        keys = sum(s.keys for s in reading)
        width = shard.heads * (mla.qk_nope + mla.v_head_dim)
        ops += (matmul.linear(shard, (keys,), mla.kv_lora_rank, width), _read(shard, mla, reading, keys))
    if decoding:
        count = len(decoding) + padding
        into = _absorb(shard, (count, mla.kv_lora_rank, mla.qk_nope))
        back = _absorb(shard, (count, mla.v_head_dim, mla.kv_lora_rank))
        ops += (into, _decode(shard, mla, decoding), back)
    return ops


def _read(shard: Shard, mla: LatentAttention, slices: Sequence[Slice], keys: int) -> Op:
    heads, width, out = shard.heads, mla.qk_nope + mla.qk_rope, mla.v_head_dim
    tokens, size = sum(s.queries for s in slices), shard.size
    seen = sum(attention.pairs(s.queries, s.keys, None) for s in slices)
    moved = size * heads * (tokens + keys) * (width + out)
    work = Work(2 * heads * seen * (width + out), moved, shard.dtype, True)
    longest = (max(s.queries for s in slices), max(s.keys for s in slices))
    element = names.CUTLASS[shard.dtype]
    tiles = f"cute::tuple<cute::C<128>, cute::C<112>, cute::C<{width}>>"
    name = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
    name += f"CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, {tiles}, {out}, {element}, "
    name += "float, cutlass::arch::Sm90, true, false, false, true, false, false>>>>(Params)"
    launching = Launching((shard.card.gpu.num_sms, 1, 1), (384, 1, 1), 168, 213_248)
    done = shard.card.kernel(name, "attention", work, launching)
    starts = Tensor((len(slices) + 1,), "int")
    arguments: tuple[Argument, ...] = (
        *(shard.tensor(tokens, heads, width), shard.tensor(keys, heads, width), shard.tensor(keys, heads, out)),
        *(NONE, NONE, NONE, shard.tensor(tokens, heads, out), starts, starts, NONE, NONE, NONE),
        *map(Scalar, (str(longest[0]), str(longest[1]))),
        *(NONE,) * 9,
        *map(Scalar, (f"{width**-0.5:.17g}", "True", "-1", "-1", "0.", "True")),
        *(NONE, Scalar("0"), NONE, Scalar("0")),
    )
    return vector.op(shard, "_vllm_fa3_C::fwd", arguments, done)


def _decode(shard: Shard, mla: LatentAttention, slices: Sequence[Slice]) -> Op:
    heads, rank, latent = shard.heads, mla.kv_lora_rank, mla.kv_lora_rank + mla.qk_rope
    count, keys = len(slices), sum(s.keys for s in slices)
    cached = keys * latent * shard.size
    moved = count * heads * (latent + rank) * shard.size + cached
    work = Work(2 * heads * keys * (latent + rank), moved, shard.dtype, True, kv_bytes=cached)
    element = names.CUTLASS[shard.dtype]
    name = (
        f"void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<{latent}, 64, 64, 8, {element}, {rank}, "
    )
    launching = Launching((math.ceil(heads / 64), 1, shard.card.gpu.num_sms), (256, 1, 1), 255, 230_400)
    done = shard.card.kernel(f"{name}true, 0>, true>(Flash_fwd_mla_params)", "attention", work, launching)
    table = Tensor((count, math.ceil(max(s.keys for s in slices) / PAGE)), "int")
    lengths = Tensor((count,), "int")
    arguments: tuple[Argument, ...] = (
        *(shard.tensor(count, 1, heads, latent), pool(shard, mla), NONE, Scalar(str(rank)), lengths, table),
        *map(Scalar, (f"{(mla.qk_nope + mla.qk_rope) ** -0.5:.17g}", "True")),
        *(Tensor((shard.card.gpu.num_sms, 8), "int"), Tensor((count + 1,), "int")),
    )
    return vector.op(shard, "_flashmla_C::fwd_kvcache_mla", arguments, done)


def _absorb(shard: Shard, shape: tuple[int, int, int]) -> Op:
    """aten::bmm of every head's part of a weight: (H, m, k) x (H, k, n)."""
    m, n, k = shape
    heads, size = shard.heads, shard.size
    weights = heads * k * n * size
    work = Work(2 * heads * m * n * k, size * heads * m * (k + n) + weights, shard.dtype, m > 1, weights)
    name, launching = names.gemm(shard.card.gpu, shard.dtype, m, n) if m > 1 else names.gemv(shard.dtype, n)
    launching = Launching((*launching.grid[:2], heads), launching.block, launching.registers, launching.shared_memory)
    done = shard.card.kernel(name, "gemm" if m > 1 else "gemv", work, launching)
    left, _ = views.transpose(shard, shard.tensor(m, heads, k), 0, 1)
    inner = vector.op(shard, "aten::bmm", (shard.tensor(heads, m, k), shard.tensor(heads, k, n)), done)
    return Op("aten::matmul", (shard.tensor(heads, m, k), shard.tensor(heads, k, n)), (left, inner), shard.view_ns)


def pool(shard: Shard, mla: LatentAttention) -> Tensor:
    """The paged cache of one layer."""
    pages = attention.pages(shard.scenario)
    return shard.tensor(pages, PAGE, mla.kv_lora_rank + mla.qk_rope)


def store(shard: Shard, mla: LatentAttention, rows: int, tokens: int) -> Op:
    """The write of latents into the cache; rows that are no tokens are skipped."""
    latent = mla.kv_lora_rank + mla.qk_rope
    cpp = names.CPP[shard.dtype]
    name = f"void vllm::concat_and_cache_mla_kernel<{cpp}, {cpp}, (vllm::Fp8KVCacheDataType)0>({cpp} const*, "
    name += f"{cpp} const*, {cpp}*, long const*, int, int, int, int, int, int, int, float const*)"
    moved = 2 * tokens * latent * shard.size + 8 * rows
    launching = Launching((rows, 1, 1), (512, 1, 1), 32)
    done = vector.kernel(shard, (name, launching), "kv_write", 0, moved, shard.dtype)
    slots, kind = Tensor((rows,), "long int"), Scalar("auto", "")
    new = (shard.tensor(rows, mla.kv_lora_rank), shard.tensor(rows, mla.qk_rope))
    arguments = (*new, pool(shard, mla), slots, kind, Tensor((), "float"))
    return vector.op(shard, "_C_cache_ops::concat_and_cache_mla", arguments, done)
