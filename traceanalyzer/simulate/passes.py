"""The passes of a scenario, one at a time: prefill, decode and mixed ones, each with its sampling.

In graph mode decode passes replay one graph from the embedding to the final norm; lm_head and sampler stay eager, as
serving engines have it. Every sequence of a pass gets logits, also one whose prompt is not read to its end yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceanalyzer.errors import InputError
from traceanalyzer.simulate import sampling
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.checks import check
from traceanalyzer.simulate.cost import Card
from traceanalyzer.simulate.layers import Forward, Ops
from traceanalyzer.simulate.program import Kernel, Launch, Op, Pass, Scalar, Tensor
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.schedule import batches
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
    random = np.random.default_rng(shard.scenario.seed)
    forward = Forward(shard)
    ends: dict[tuple[int, int], Ops] = {}
    for slices in batches(shard.scenario):
        tokens, sequences = sum(s.queries for s in slices), len(slices)
        if (tokens, sequences) not in ends:
            ends[tokens, sequences] = sampling.head(shard, tokens, sequences) + sampling.sample(shard, sequences)
        yield _pass(shard, slices, forward.ops(slices, random), ends[tokens, sequences])


def _pass(shard: Shard, slices: Sequence[Slice], ops: Ops, after: Ops) -> Pass:
    prompt = shard.scenario.prompt
    reading = [s for s in slices if s.keys <= prompt]
    prefill_tokens = sum(s.queries for s in reading)
    tokens = sum(s.queries for s in slices)
    phase = "decode" if not reading else "prefill" if len(reading) == len(slices) else "mixed"
    replayed = shard.scenario.mode == "graph" and phase == "decode"
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


def _kernels(ops: Sequence[Op | Launch]) -> Iterator[Kernel]:
    """The kernels that ops launch, in order."""
    for one in ops:
        if isinstance(one, Op):
            yield from _kernels(one.body)
        elif isinstance(one.work, Kernel):
            yield one.work
