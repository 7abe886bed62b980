"""The rotary embedding of queries and keys: one kernel, or a chain of slices, sums and products.

Three FLOPs per element (a pair takes four products and two sums); bytes: queries and keys read and written, and a row
of cosines and sines per token, at most the whole table. The chain multiplies by both tables, negates and joins the
halves, and adds.
"""

from __future__ import annotations

import math

from traceanalyzer.simulate import names, vector
from traceanalyzer.simulate.cost import Launching
from traceanalyzer.simulate.program import Op, Scalar, Tensor
from traceanalyzer.simulate.shard import Shard


def rotary(shard: Shard, rows: tuple[int, ...]) -> tuple[Op, ...]:
    """The ops of one layer; none in a model with learned positions."""
    if shard.model.learned_positions:
        return ()
    if shard.scenario.fused:
        heads = (shard.heads, shard.kv_heads)
        width = (heads[0] + 2 * heads[1]) * shard.head_dim
        return (fused(shard, math.prod(rows), heads, shard.head_dim, width),)
    batch, length = (1, rows[0]) if len(rows) == 1 else rows
    return (*_chain(shard, batch, shard.heads, length), *_chain(shard, batch, shard.kv_heads, length))


def fused(shard: Shard, tokens: int, of: tuple[int, int], head: int, width: int) -> Op:
    """One kernel for queries and keys, views of rows of `width` numbers; `of` is how many heads each has."""
    heads, kv_heads = of
    count = tokens * (heads + kv_heads) * head
    c10 = names.C10[shard.dtype]
    name = f"void vllm::rotary_embedding_kernel<{c10}, true>(long const*, {c10}*, {c10}*, {c10} const*, int, long, "
    launching = Launching((tokens, 1, 1), (min(512, heads * head // 2), 1, 1), 32)
    table = min(tokens, shard.model.max_position) * head  # several sequences read the same rows of it
    moved = shard.size * (2 * count + table) + 8 * tokens
    done = vector.kernel(shard, (name + "long, long, int, int, int)", launching), "rope", 3 * count, moved, shard.dtype)
    arguments = (
        Tensor((tokens,), "long int"),
        shard.tensor(tokens, heads * head, strides=(width, 1)),
        shard.tensor(tokens, kv_heads * head, strides=(width, 1)),
        Scalar(str(head)),
        shard.tensor(shard.model.max_position, head),
        Scalar("True"),
    )
    return vector.op(shard, "_C::rotary_embedding", arguments, done)


def _chain(shard: Shard, batch: int, heads: int, length: int) -> tuple[Op, ...]:
    """x cos + rotate_half(x) sin of queries or of keys."""
    head = shard.head_dim
    strides = (length * heads * head, head, heads * head, 1)
    x = shard.tensor(batch, heads, length, head, strides=strides)
    whole, table = shard.tensor(batch, heads, length, head), shard.tensor(batch, 1, length, head)
    half = shard.tensor(batch, heads, length, head // 2, strides=strides)
    count = batch * heads * length * head
    mul, add = names.binary("Mul", shard.dtype), names.binary("Add", shard.dtype)
    neg = vector.simple(shard, "aten::neg", names.unary("neg", shard.dtype), (half,), "rope", ())
    opaque = f"at::native::(anonymous namespace)::OpaqueType<{shard.size}u>"
    name = f"void at::native::(anonymous namespace)::CatArrayBatchedCopy<{opaque}, unsigned int, 4, 64, 64>({opaque}*, "
    name += f"at::native::(anonymous namespace)::CatArrInputTensorMetadata<{opaque}, unsigned int, 64, 64>, "
    name += "at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    launching = Launching((2 * shard.card.gpu.num_sms, 2, 1), (512, 1, 1), 32)
    joined = vector.kernel(shard, (name, launching), "rope", 0, 2 * count * shard.size, shard.dtype)
    return (
        vector.simple(shard, "aten::mul", mul, (x, table), "rope", ()),
        neg,
        vector.op(shard, "aten::cat", ((shard.tensor(*half.dims), half), Scalar("-1")), joined),
        vector.simple(shard, "aten::mul", mul, (whole, table), "rope", ()),
        vector.simple(shard, "aten::add", add, (whole, whole), "rope", (Scalar("1"),)),
    )
