"""The forward pass of a model over a batch, as ops: embedding, layers, final norm.

What depends on contexts (attention, and a cache that is copied) is built for every pass; all else once per shape of a
pass and shared, so that long runs cost little. With `fused` kernels activations are (tokens, hidden) and one matrix
makes queries, keys and values, as serving engines do; else (batch, length, hidden) with a matrix each, as Hugging Face
does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceanalyzer.simulate import attention, experts, latent, matmul, rotary, vector, views
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.program import Kernel, Op, Replay, launched
from traceanalyzer.simulate.shard import Shard

Ops = tuple[Op, ...]
Rows = tuple[int, ...]
#: A sequence of a padded batch that nobody waits for.
_NOBODY = Slice(-1, 0, 0)


@dataclass(frozen=True)
class _Layer:
    """The parts of one layer that know no context: up to the rotary embedding, the cache's write, after attention."""

    before: Ops
    store: Ops
    projection: Ops
    mlp: Ops


class Forward:
    """Builds forward passes of one rank's shard; keeps what passes of one shape share."""

    def __init__(self, shard: Shard) -> None:
        """`shard` stays the same for the whole run."""
        self._shard = shard
        self._layers: dict[tuple[Rows, int, int, int], _Layer] = {}
        self._experts: dict[tuple[Rows, int, int], Ops] = {}
        self._ends: dict[Rows, tuple[Ops, Ops]] = {}

    def ops(self, slices: Sequence[Slice], random: np.random.Generator, size: int | None = None) -> Ops:
        """Everything from the token ids to the final norm; `random` draws the experts.

        Padded to `size` tokens: what works token by token computes so many, and as many sequences stand in the batch.
        """
        return tuple(op for ops, _ in self._parts(slices, random, size, apart=False) for op in ops)

    def pieces(self, slices: Sequence[Slice], random: np.random.Generator, size: int) -> tuple[Op | Replay, ...]:
        """The same with a graph before, between and after the layers' attention, which knows no padding."""
        pieces: list[Op | Replay] = []
        kernels: list[Kernel] = []
        for ops, attention_ in self._parts(slices, random, size, apart=True):
            if attention_:
                pieces += [Replay(tuple(kernels), len(pieces)), *ops]
                kernels = []
            else:
                kernels += (one for one in launched(ops) if isinstance(one, Kernel))
        return (*pieces, Replay(tuple(kernels), len(pieces)))

    def _parts(
        self, slices: Sequence[Slice], random: np.random.Generator, size: int | None, *, apart: bool
    ) -> Iterator[tuple[Ops, bool]]:
        """Groups of ops, and whether each is a layer's attention; that is padded too unless it stands `apart`."""
        rows, tokens = self._rows(slices, size), sum(s.queries for s in slices)
        inner = self._rows(slices, None) if apart else rows
        slices = _padded(slices, math.prod(inner))
        if rows not in self._ends:
            self._ends[rows] = self._first(rows), self._norm(rows, residual=True)
        first, last = self._ends[rows]
        yield first, False
        attended: dict[int | None, Ops] = {}
        for index in range(self._shard.model.layers):
            window = self._shard.model.window(index)
            if window not in attended:
                attended[window] = self._attend(slices, inner, window)
            layer = self._layer(rows, (math.prod(inner), tokens), index)
            yield layer.before, False
            yield layer.store + self._named(attended[window], "Attention", index), True
            yield layer.projection, False
            yield layer.mlp if layer.mlp else self._mixture(rows, index, random), False
        yield last, False

    def _rows(self, slices: Sequence[Slice], size: int | None) -> Rows:
        """The leading axes of activations."""
        tokens = size or sum(s.queries for s in slices)
        if self._shard.scenario.fused:
            return (tokens,)
        queries = slices[0].queries
        alike = len({s.queries for s in slices}) == 1 and tokens % queries == 0
        return (tokens // queries, queries) if alike else (1, tokens)

    def _first(self, rows: Rows) -> Ops:
        shard, model = self._shard, self._shard.model
        tokens = vector.embedding(shard, rows, model.vocab)
        if not model.learned_positions:
            return (tokens,)
        positions = vector.embedding(shard, rows, model.learned_positions)
        return (tokens, positions, vector.add(shard, (*rows, model.hidden)))

    def _layer(self, rows: Rows, written: tuple[int, int], index: int) -> _Layer:
        """The layer over these rows; `written` is how many stand for the cache, and how many of these are tokens."""
        key = rows, *written, index
        shared = self._layers.get(key)
        if shared is None:
            model = self._shard.model
            before = self._named(self._before(rows, first=index == 0), "Attention", index)
            store = self._named(self._store(*written), "Attention", index)
            projection = self._named(self._projection(rows), "Attention", index)
            mlp = () if model.has_experts(index) else self._named(self._mlp(rows), "MLP", index)
            shared = self._layers[key] = _Layer(before, store, projection, mlp)
        return shared

    def _named(self, ops: Ops, part: str, index: int) -> Ops:
        """The ops, called by this layer's module."""
        name = f"{self._shard.class_name}{part}_{index}"
        return tuple(replace(op, module=name) for op in ops)

    def _before(self, rows: Rows, *, first: bool) -> Ops:
        """Norm, queries, keys and values, their norms, rotary embedding."""
        shard, model = self._shard, self._shard.model
        heads, kv_heads, head = shard.heads, shard.kv_heads, shard.head_dim
        widths = (heads * head, kv_heads * head, kv_heads * head)
        ops = () if self._norms_after() else self._norm(rows, residual=not first)
        if model.mla is not None:
            return ops + latent.before(shard, model.mla, math.prod(rows))
        if shard.merged:
            ops += (matmul.linear(shard, rows, model.hidden, sum(widths), bias=model.qkv_bias),)
            ops += (views.split(shard, shard.tensor(*rows, sum(widths)), widths)[0],)
        else:
            ops += tuple(matmul.linear(shard, rows, model.hidden, width, bias=model.qkv_bias) for width in widths)
        if model.qk_norm == "per_head":
            ops += vector.norm(shard, (*rows, heads, head)) + vector.norm(shard, (*rows, kv_heads, head))
        elif model.qk_norm == "full_width":
            ops += vector.norm(shard, (*rows, widths[0])) + vector.norm(shard, (*rows, widths[1]))
        return ops + rotary.rotary(shard, rows)

    def _store(self, rows: int, tokens: int) -> Ops:
        """What writes a cache in place; rows that are no tokens are skipped."""
        shard, mla = self._shard, self._shard.model.mla
        if mla is not None:
            return (latent.store(shard, mla, rows, tokens),)
        return attention.store(shard, rows, tokens) if shard.scenario.kv_cache == "static" else ()

    def _attend(self, slices: Sequence[Slice], rows: Rows, window: int | None) -> Ops:
        """What knows contexts."""
        if self._shard.model.mla is not None:
            padding = math.prod(rows) - sum(s.queries for s in slices)
            return latent.attend(self._shard, self._shard.model.mla, slices, padding)
        copied = self._shard.scenario.kv_cache == "cat"
        cached = attention.concatenate(self._shard, slices) if copied else ()
        return cached + attention.attend(self._shard, slices, rows, window)

    def _projection(self, rows: Rows) -> Ops:
        """Output projection, all-reduce, and what joins it to the residual stream."""
        shard, model = self._shard, self._shard.model
        width = shard.heads * (model.mla.v_head_dim if model.mla else shard.head_dim)
        ops: Ops = (matmul.linear(shard, rows, width, model.hidden, bias=model.o_bias),)
        ops += matmul.all_reduce(shard, rows, model.hidden)
        return ops if model.parallel_attention_mlp else ops + self._joined(rows)

    def _joined(self, rows: Rows) -> Ops:
        """A norm of the branch where the model has one, and the residual sum where the next norm does not add it."""
        normed = self._norm(rows) if self._norms_after() or self._shard.model.norms_per_layer == 4 else ()
        summed = () if self._norm_adds() else (vector.add(self._shard, (*rows, self._shard.model.hidden)),)
        return normed + summed

    def _norm(self, rows: Rows, *, residual: bool = False) -> Ops:
        dims = (*rows, self._shard.model.hidden)
        return vector.norm(self._shard, dims, residual=residual and self._norm_adds())

    def _norm_adds(self) -> bool:
        """Whether a norm before a branch begins with the last branch's residual sum."""
        return (self._shard.scenario.fused or self._shard.model.norm != "rmsnorm") and not self._norms_after()

    def _norms_after(self) -> bool:
        """Whether branches are normed after (not before) them, as in OLMo 2."""
        return self._shard.model.architecture.startswith("Olmo2")

    def _mlp_norm(self, rows: Rows) -> Ops:
        model = self._shard.model
        return () if self._norms_after() or model.parallel_attention_mlp else self._norm(rows, residual=True)

    def _mlp(self, rows: Rows) -> Ops:
        return self._mlp_norm(rows) + self._dense(rows, self._shard.model.ffn) + self._mlp_end(rows)

    def _dense(self, rows: Rows, ffn: int) -> Ops:
        shard, model = self._shard, self._shard.model
        hidden, width = model.hidden, ffn // shard.scenario.ranks
        if not model.mlp_gated:
            ops: Ops = (
                matmul.linear(shard, rows, hidden, width, bias=model.mlp_bias),
                vector.plain_activation(shard, rows, width),
            )
        elif shard.merged:
            ops = (matmul.linear(shard, rows, hidden, 2 * width), *vector.gated(shard, rows, width))
        else:
            activation, product = vector.gated(shard, rows, width)
            gate = matmul.linear(shard, rows, hidden, width)
            ops = (gate, activation, gate, product)
        return (*ops, matmul.linear(shard, rows, width, hidden, bias=model.mlp_bias))

    def _mlp_end(self, rows: Rows) -> Ops:
        shard, model = self._shard, self._shard.model
        reduced = matmul.all_reduce(shard, rows, model.hidden)
        if model.parallel_attention_mlp:
            # The branches are added to each other, and their sum by the next norm.
            return (*reduced, vector.add(shard, (*rows, model.hidden)))
        return reduced + self._joined(rows)

    def _mixture(self, rows: Rows, index: int, random: np.random.Generator) -> Ops:
        """A layer's experts, as many active as drawn for this pass."""
        moe = self._shard.model.moe
        if moe is None:
            return ()
        active = experts.draw_active(random, moe, math.prod(rows))
        key = (rows, index, active)
        if key not in self._experts:
            ops = self._mlp_norm(rows) + experts.experts(self._shard, moe, rows, active)
            if moe.shared_experts:
                summed = vector.add(self._shard, (*rows, self._shard.model.hidden))
                ops += (*self._dense(rows, moe.shared_experts * moe.ffn), summed)
            self._experts[key] = self._named(ops + self._mlp_end(rows), "SparseMoeBlock", index)
        return self._experts[key]


def _padded(slices: Sequence[Slice], size: int) -> Sequence[Slice]:
    """As many sequences as a batch of so many tokens has, in which all have the same number of queries."""
    missing = size - sum(s.queries for s in slices)
    return (*slices, *(_NOBODY,) * (missing // slices[0].queries)) if missing else slices
