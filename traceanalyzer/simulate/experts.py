"""A mixture of experts: router, choice, and the experts' two grouped products.

T tokens of k experts each: 2 T h E FLOPs of the router, 6 T k h f of gated experts. A pass reads the weights of the
experts that any token is sent to. How many that are is drawn: every token picks k different experts, all equally
likely (real routers are skewed, so they read fewer). Where a shared expert stands beside, it is a dense MLP. Padded
rows of the grouped products are no work.
"""

from __future__ import annotations

import math

import numpy as np

from traceanalyzer.catalog.models import Experts
from traceanalyzer.simulate import matmul, names, vector
from traceanalyzer.simulate.cost import Launching, Work
from traceanalyzer.simulate.program import Kernel, Launch, Op, Scalar, Tensor
from traceanalyzer.simulate.shard import Shard

_TILE = 64


def draw_active(random: np.random.Generator, moe: Experts, tokens: int) -> int:
    """How many different experts this many tokens are sent to.

    Of the k experts of a token, as many are new as a draw without replacement says (hypergeometric), token by token.
    """
    active = 0
    for _ in range(tokens):
        if active == moe.experts:
            break
        active += int(random.hypergeometric(moe.experts - active, active, moe.experts_per_token))
    return active


def experts(shard: Shard, moe: Experts, rows: tuple[int, ...], active: int) -> tuple[Op, ...]:
    """The ops of one layer's experts, up to the all-reduce."""
    tokens, hidden = math.prod(rows), shard.model.hidden
    router = matmul.linear(shard, rows, hidden, moe.experts, bias=moe.router_bias, quantised=False)
    return (router, _choose(shard, moe, tokens), _fused(shard, moe, tokens, active))


def _choose(shard: Shard, moe: Experts, tokens: int) -> Op:
    """Softmax over the experts and the k largest."""
    k, count = moe.experts_per_token, tokens * moe.experts
    name = f"void vllm::moe::topkGatingSoftmax<4, {moe.experts}, 4, 16, 32, int>(float const*, bool const*, float*, "
    launching = Launching((math.ceil(tokens / 4), 1, 1), (32, 4, 1), 40)
    moved = count * shard.size + tokens * k * (4 + 4 + 4)
    done = vector.kernel(shard, (name + "int, int*, int*, int, int, int)", launching), "topk", 5 * count, moved, "fp32")
    weights, ids = Tensor((tokens, k), "float"), Tensor((tokens, k), "int")
    logits = shard.tensor(tokens, moe.experts)
    return vector.op(shard, "_moe_C::topk_softmax", (weights, ids, ids, logits), done)


def _fused(shard: Shard, moe: Experts, tokens: int, active: int) -> Op:
    hidden, width = shard.model.hidden, moe.ffn // shard.scenario.ranks
    k = moe.experts_per_token
    sent, size = tokens * k, shard.size
    merged = 2 if shard.model.mlp_gated else 1
    x, ids = shard.tensor(tokens, hidden), Tensor((tokens, k), "int")
    first = shard.tensor(moe.experts, merged * width, hidden)
    second = shard.tensor(moe.experts, hidden, width)
    biases = (active * merged * width * size, active * hidden * size) if moe.expert_bias else (0, 0)
    held = active * width * hidden * size
    order = math.ceil((sent + moe.experts * (_TILE - 1)) / _TILE)
    up = _grouped(shard, (sent, merged * width, hidden), merged * held + biases[0], tokens * hidden)
    down = _grouped(shard, (sent, hidden, width), held + biases[1], sent * width)
    align = "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, int, int)"
    moved = 4 * (2 * sent + order)
    aligned = vector.kernel(shard, (align, Launching((1, 1, 1), (1024, 1, 1), 32)), "moe_sort", None, moved, "fp32")
    c10 = names.C10[shard.dtype]
    total = f"void vllm::moe::moe_sum_kernel<{c10}, {k}>({c10}*, {c10} const*, int)"
    launching = Launching((tokens, 1, 1), (min(1024, hidden), 1, 1), 32)
    moved = size * (sent + tokens) * hidden
    summed = vector.kernel(shard, (total, launching), "moe_sum", sent * hidden, moved, shard.dtype)
    three = shard.tensor(tokens, k, hidden)
    sorting = (ids, Scalar(str(moe.experts)), Scalar(str(_TILE)), ids)
    body: tuple[Op | Launch, ...] = (
        vector.op(shard, "_moe_C::moe_align_block_size", sorting, aligned),
        Launch(up),
        *vector.gated(shard, (sent,), width),
        Launch(down),
        vector.op(shard, "_moe_C::moe_sum", (three, x), summed),
    )
    arguments = (x, first, second, Tensor((tokens, k), "float"), ids, Scalar("silu", ""))
    return Op("vllm::inplace_fused_experts", arguments, body, shard.host_ns)


def _grouped(shard: Shard, shape: tuple[int, int, int], weights: float, read: int) -> Kernel:
    """One product of every expert's tokens; `shape` is (rows, outputs, inputs), `read` the numbers that go in.

    Its grid covers the tiles that there can be, for each expert's rows are padded to whole tiles; where few rows go in,
    one a row (`vllm/model_executor/layers/fused_moe/fused_moe.py`).
    """
    rows, n, k = shape
    moved = shard.size * (read + rows * n) + weights
    work = Work(2 * rows * n * k, moved, shard.dtype, True, weights)
    assert shard.model.moe is not None
    tiles = math.ceil((rows + shard.model.moe.experts * (_TILE - 1)) / _TILE)
    tiles = min(tiles, rows) if read // k < _TILE else tiles
    launching = Launching((tiles * math.ceil(n / _TILE), 1, 1), (256, 1, 1), 168, 65_536)
    return shard.card.kernel("fused_moe_kernel", "moe", work, launching)
