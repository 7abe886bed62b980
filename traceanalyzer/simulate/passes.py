"""The passes of a scenario, one at a time: prefill, decode and mixed ones, each with its sampling.

In graph mode decode passes replay one graph from the embedding to the final norm, or any pass one before, between and
after the layers' attention; lm_head and sampler stay eager, as serving engines have it. A draft model's passes follow
the target's. Every sequence of a pass gets logits, also one whose prompt is not read to its end yet. What a padded pass
computes for nobody is known by building it once more without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from traceanalyzer.errors import InputError
from traceanalyzer.simulate import captured, plants, sampling, speculation
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.checks import check
from traceanalyzer.simulate.cost import Card
from traceanalyzer.simulate.layers import Forward, Ops
from traceanalyzer.simulate.program import Kernel, Launch, Op, Pass, Scalar, Tensor, launched
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.schedule import turns
from traceanalyzer.simulate.shard import Shard

Ends = tuple[Op | Launch, ...]


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
    return _passes(Shard(model, scenario, Card(gpu, scenario.costs)), rank)


def _passes(shard: Shard, rank: int) -> Iterator[Pass]:
    scenario = shard.scenario
    target = _Builder(shard)
    small = (
        _Builder(replace(shard, model=speculation.draft_model(scenario)), draft=True) if scenario.speculate else None
    )
    for number, turn in enumerate(turns(scenario)):
        group = [target.pass_(turn.slices)]
        if small is not None and turn.going:
            runs = [*speculation.drafts(scenario, turn.going)]
            group += [small.pass_(slices, last=slices is runs[-1]) for slices in runs]
        # The host schedules when all is launched; between a pass and its drafts it does nothing else.
        group[-1] = replace(group[-1], host_after_ns=scenario.costs.between_steps_ns)
        yield from plants.planted(scenario, rank, group, number, last=turn.last)


class _Builder:
    """Builds the passes of one model on one rank, in order."""

    def __init__(self, shard: Shard, *, draft: bool = False) -> None:
        self._shard = shard
        self._draft = draft
        self._forward = Forward(shard)
        self._random = np.random.default_rng(shard.scenario.seed)
        self._spare = np.random.default_rng(shard.scenario.seed)  # draws that count for nothing
        self._ends: dict[tuple[int, int, str], Ends] = {}

    def pass_(self, slices: Sequence[Slice], *, last: bool = True) -> Pass:
        """One pass over these sequences; after the `last` run of a draft model the host gets the guesses."""
        tokens, reads = sum(s.queries for s in slices), _phase(self._shard.scenario, slices)
        scenario, queries = self._shard.scenario, slices[0].queries
        whole = scenario.mode in ("graph", "full-and-piecewise") and reads == "decode"
        pieces = not whole and scenario.mode in ("piecewise", "full-and-piecewise")
        size = captured.size(scenario, tokens, queries if whole else 1) if whole or pieces else None
        end = "sample" if reads != "decode" or not scenario.speculate else "verify"
        if self._draft:
            end = "last guess" if last else "guess"
        after = self._after(slices, size or tokens, end)
        done = _pass(scenario, "draft" if self._draft else reads, slices, after)
        inputs = _inputs(self._shard, tokens)
        if size is None:
            return replace(done, ops=self._forward.ops(slices, self._random))
        if pieces:
            parts = self._forward.pieces(slices, self._random, size)
            done = replace(done, ops=(*inputs, *parts), captured=(0, int(self._draft)))
        else:
            graph = tuple(_kernels(self._forward.ops(slices, self._random, size)))
            done = replace(done, ops=inputs, graph=graph, captured=(queries, int(self._draft)))
        if size == tokens:
            return done
        return replace(done, padded_tokens=size - tokens, useful=self._useful(slices, tokens, end))

    def _after(self, slices: Sequence[Slice], size: int, end: str) -> Ends:
        """What follows the forward pass at this size."""
        key = size, len(slices), end
        if key not in self._ends:
            self._ends[key] = _end(self._shard, *key)
        return self._ends[key]

    def _useful(self, slices: Sequence[Slice], tokens: int, end: str) -> tuple[float | None, float | None]:
        """FLOPs and bytes of the pass without padding; which experts the padding alone reads is not known."""
        done = [*_kernels(self._forward.ops(slices, self._spare)), *_kernels(self._after(slices, tokens, end))]
        flops = None if any(one.flops is None for one in done) else sum(one.flops or 0.0 for one in done)
        unknown = self._shard.model.moe is not None or any(one.bytes is None for one in done)
        return flops, None if unknown else sum(one.bytes or 0.0 for one in done)


def _end(shard: Shard, size: int, sequences: int, end: str) -> Ends:
    """From the last hidden states to the next tokens, of a pass over so many rows."""
    if end == "verify":
        checked = sequences * (1 + shard.scenario.speculate)
        return sampling.head(shard, size, checked) + sampling.verify(shard, sequences)
    head, guesses = sampling.head(shard, size, sequences), shard.scenario.speculate * sequences
    if end == "sample":
        return head + sampling.sample(shard, sequences)
    return head + sampling.choose(shard, sequences) + ((sampling.fetch(shard, guesses),) if end == "last guess" else ())


def _phase(scenario: Scenario, slices: Sequence[Slice]) -> str:
    """What these sequences do."""
    reading = sum(s.keys <= scenario.prompt for s in slices)
    return "decode" if not reading else "prefill" if reading == len(slices) else "mixed"


def _pass(scenario: Scenario, phase: str, slices: Sequence[Slice], after: Ends) -> Pass:
    """The counts of a pass, and what follows its forward pass."""
    draft = phase == "draft"
    reading = [s for s in slices if s.keys <= scenario.prompt and not draft]
    decoding = [s for s in slices if s.keys > scenario.prompt and not draft]
    tokens = sum(s.queries for s in slices)
    return Pass(
        phase=phase,
        tokens=tokens,
        prefill_tokens=sum(s.queries for s in reading),
        decode_tokens=sum(s.queries for s in decoding),
        sequences=len(slices),
        prefill_sequences=len(reading),
        decode_sequences=len(decoding),
        context_sum=sum(s.keys for s in slices),
        query_context_sum=sum(s.queries * s.keys for s in slices),
        requests=() if draft else tuple(s.request for s in slices),
        ops=(),
        after=after,
    )


def _inputs(shard: Shard, tokens: int) -> Ops:
    """The copy of the token ids into the graph's own buffer."""
    ids = Tensor((tokens,), "long int")
    copied = shard.card.copy("HtoD", 8 * tokens, blocking=False)
    return (Op("aten::copy_", (ids, ids, Scalar("True")), (Launch(copied),), shard.host_ns),)


def _kernels(ops: Ends) -> Iterator[Kernel]:
    """The kernels that ops launch, in order."""
    return (one for one in launched(ops) if isinstance(one, Kernel))
