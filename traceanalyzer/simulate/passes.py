"""The passes of a scenario, one at a time: prefill, decode and mixed ones, each with its sampling.

In graph mode decode passes replay one graph from the embedding to the final norm; lm_head and sampler stay eager, as
serving engines have it. Every sequence of a pass gets logits, also one whose prompt is not read to its end yet.
What a padded pass computes for nobody is known by building it once more without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from traceanalyzer.errors import InputError
from traceanalyzer.simulate import captured, plants, sampling
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.checks import check
from traceanalyzer.simulate.cost import Card
from traceanalyzer.simulate.layers import Forward, Ops
from traceanalyzer.simulate.program import Kernel, Launch, Op, Pass, Scalar, Tensor, launched
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.schedule import turns
from traceanalyzer.simulate.shard import Shard


def passes(scenario: Scenario, rank: int = 0) -> Iterator[Pass]:
    """Every forward pass that one rank makes.

    All ranks hold equal shares and route tokens to the same experts, so their passes are alike.

    Raises:
        UnknownGPUError, InputError: the scenario cannot be simulated, or has no such rank. Raised at once, not with
            the first pass.
    """
    gpu, model = check(scenario)
    if not 0 <= rank < scenario.ranks:
        raise InputError(f"there is no rank {rank}", f"the run has {scenario.ranks}")
    return _passes(Shard(model, scenario, Card(gpu, scenario.costs)))


def _passes(shard: Shard) -> Iterator[Pass]:
    builder = _Builder(shard)
    for index, turn in enumerate(turns(shard.scenario)):
        yield plants.planted(shard.scenario.plants, builder.pass_(turn.slices), index, last=turn.last)


class _Builder:
    """Builds the passes of one model on one rank, in order."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._forward = Forward(shard)
        self._random = np.random.default_rng(shard.scenario.seed)
        self._spare = np.random.default_rng(shard.scenario.seed)  # draws that count for nothing
        self._ends: dict[tuple[int, int], Ops] = {}

    def pass_(self, slices: Sequence[Slice]) -> Pass:
        """One pass over these sequences."""
        tokens, phase = sum(s.queries for s in slices), _phase(self._shard.scenario, slices)
        replayed = self._shard.scenario.mode == "graph" and phase == "decode"
        size = captured.size(self._shard.scenario, tokens, slices[0].queries) if replayed else None
        made = self._made(slices, size or tokens, self._random)
        done = _pass(self._shard, phase, slices, *made, replayed=size is not None)
        if size is None or size == tokens:
            return done
        return replace(done, padded_tokens=size - tokens, useful=self._useful(slices, tokens))

    def _made(self, slices: Sequence[Slice], size: int, random: np.random.Generator) -> tuple[Ops, Ops]:
        """The forward pass at this size, and what follows it."""
        key = size, len(slices)
        if key not in self._ends:
            self._ends[key] = sampling.head(self._shard, *key) + sampling.sample(self._shard, len(slices))
        return self._forward.ops(slices, random, size), self._ends[key]

    def _useful(self, slices: Sequence[Slice], tokens: int) -> tuple[float | None, float | None]:
        """FLOPs and bytes of the pass without padding; which experts the padding alone reads is not known."""
        forward, after = self._made(slices, tokens, self._spare)
        done = [*_kernels(forward), *_kernels(after)]
        flops = None if any(one.flops is None for one in done) else sum(one.flops or 0.0 for one in done)
        unknown = self._shard.model.moe is not None or any(one.bytes is None for one in done)
        return flops, None if unknown else sum(one.bytes or 0.0 for one in done)


def _phase(scenario: Scenario, slices: Sequence[Slice]) -> str:
    """What these sequences do."""
    reading = sum(s.keys <= scenario.prompt for s in slices)
    return "decode" if not reading else "prefill" if reading == len(slices) else "mixed"


def _pass(shard: Shard, phase: str, slices: Sequence[Slice], ops: Ops, after: Ops, *, replayed: bool) -> Pass:
    prompt = shard.scenario.prompt
    reading = [s for s in slices if s.keys <= prompt]
    prefill_tokens = sum(s.queries for s in reading)
    tokens = sum(s.queries for s in slices)
    return Pass(
        phase=phase,
        tokens=tokens,
        prefill_tokens=prefill_tokens,
        decode_tokens=tokens - prefill_tokens,
        sequences=len(slices),
        prefill_sequences=len(reading),
        decode_sequences=len(slices) - len(reading),
        context_sum=sum(s.keys for s in slices),
        query_context_sum=sum(s.queries * s.keys for s in slices),
        requests=tuple(s.request for s in slices),
        ops=_inputs(shard, tokens) if replayed else ops,
        graph=tuple(_kernels(ops)) if replayed else (),
        after=after,
        host_after_ns=shard.scenario.costs.between_steps_ns,
    )


def _inputs(shard: Shard, tokens: int) -> Ops:
    """The copy of the token ids into the graph's own buffer."""
    ids = Tensor((tokens,), "long int")
    copied = shard.card.copy("HtoD", 8 * tokens, blocking=False)
    return (Op("aten::copy_", (ids, ids, Scalar("True")), (Launch(copied),), shard.host_ns),)


def _kernels(ops: Ops) -> Iterator[Kernel]:
    """The kernels that ops launch, in order."""
    return (one for one in launched(ops) if isinstance(one, Kernel))
