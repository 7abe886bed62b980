"""The phase of one step, with a stated confidence and the reasons for it.

A label of an engine decides by itself. Otherwise each piece of evidence adds natural log-odds, positive for prefill,
negative for decode, and the sum gives the confidence 1 / (1 + exp(-|sum|)). Below `THRESHOLD` the step is `other`:
there is no phase that a step has by default. The weights are judgements, not measurements; what they rest on stands
beside them. Evidence that says the same thing twice (q = 1, input [B, 1], M = B) is harmless because the sum is capped.

What could be wrong with it: a prompt of one token looks exactly like a decode step; a speculative verify like a small
chunk of a prompt, unless all its positions got logits or several steps in a row have the same small q.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, isnan

from traceanalyzer.analysis.steps.hints import ALIKE, CONTRAST
from traceanalyzer.analysis.steps.labels import Label
from traceanalyzer.analysis.steps.sequence import SPECULATION

THRESHOLD = 0.75
"""The least confidence at which a phase is named: log-odds of 1.1, one medium piece of evidence."""
_CAP = 4.6
"""Log-odds beyond which more evidence adds nothing: 0.99."""
LABELLED, CONTRADICTED = 0.99, 0.7

WEIGHTS = {
    "same_length": 4.0,  # q = k > 1: no cache was read, which a decode step must
    "one_query": -4.5,  # q = 1 < k is the definition of decode; a prefix hit of all but one token is rare
    "one_query_paged": -3.0,  # q = 1 per sequence, the keys are in a pool and not counted
    "chunk": 2.0,  # 32 <= q < k: too long for speculation, so a chunk or a prefix hit
    "chunk_logits": 3.0,  # 1 < q < k, and only the last position got logits
    "verify": -2.5,  # 1 < q < k, small, and all positions got logits, or the same q in several steps
    "fewer_logits": 3.0,  # lm_head M < layer M: most tokens needed no logits
    "all_logits": -2.0,  # lm_head M = layer M > 1: each token is a sequence's newest
    "one_token": -3.0,  # layer M = 1: one sequence, one new token
    "few_tokens": -1.0,  # 2..8 tokens: prompts are seldom so short
    "many_tokens": 1.0,  # 512 and more: decode batches seldom so large
    "very_many_tokens": 2.0,  # 2048 and more
    "input_one": -3.0,  # token ids [B, 1]
    "input_many": 1.5,  # token ids [B, S > 1]
    "kernel_strong": 2.0,  # the attention kernel exists for one phase only (either sign)
    "kernel_medium": 1.0,
    "kernel_vector": 2.0,  # most matrix products are with a vector
    "contrast": 2.5,  # many times, or as few, launch blocks as in the equal passes around (either sign)
    "grid_one_each": -4.0,  # as many tokens as sequences, both counted by launch grids
    "grid_many_each": 4.0,  # 32 and more tokens per sequence, or a query too long for speculation
    "checked": -6.0,  # the same few tokens of every sequence in step after step
    "grid_few_each": 1.0,  # fewer: a short prompt or a speculation
    "whole_graph": -0.7,  # engines replay whole-model graphs mostly for decode
    "word": 2.5,  # a range that somebody called prefill or decode (either sign)
}


@dataclass(frozen=True, slots=True)
class StepView:
    """Everything known of one step when its phase is decided. Integers are -1 where unknown.

    tokens: layer GEMM M; logits: lm_head M; q, k, batch: attention; ids_batch, ids_length: the looked-up ids.
    grid_tokens, grid_sequences, grid_above, grid_logits: what launch grids count; the longest query has more than
    grid_above tokens. checked: tokens per sequence of a speculative check, as the order of steps tells.
    hint, hint_strength: what the kernels' families say (prefill, decode, mixed or ""; strong, medium or vector).
    contrast: launch blocks as a multiple of the usual pass, NaN where nothing can be compared.
    repeated: in how many neighbouring steps the same small q occurs. fragment: too little of a forward pass to judge.
    no_tokens: a pass of something else than a language model. collected: the label is the collector's own, which saw
    the call itself.
    """

    label: Label | None
    word: str | None
    tokens: int
    logits: int
    q: int
    k: int
    batch: int
    ids_batch: int
    ids_length: int
    grid_tokens: int
    grid_sequences: int
    grid_above: int
    grid_logits: int
    checked: int
    hint: str
    hint_strength: str
    contrast: float
    whole_graph: bool
    repeated: int
    growing: bool
    fragment: str
    encoder: bool
    no_tokens: bool
    collected: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """A phase, the confidence in it and short reasons."""

    phase: str
    confidence: float
    evidence: tuple[str, ...]


@dataclass
class _Tally:
    total: float = 0.0
    evidence: list[str] = field(default_factory=list)

    def add(self, weight: float, text: str) -> None:
        self.total += weight
        self.evidence.append(text)


def decide(view: StepView) -> Verdict:
    """The phase of one step."""
    if view.label is not None and view.label.phase is not None:
        return _labelled(view, view.label, view.label.phase)
    if view.word in ("warmup", "encoder", "draft"):
        return Verdict(view.word, 0.9, (f"range named {view.word}",))
    tally = _weigh(view)
    if view.hint == "mixed":
        return Verdict("mixed", 0.8, ("prefill and decode attention kernels", *tally.evidence))
    if view.encoder:
        return Verdict("encoder", 0.8, ("no lm_head, unlike the passes after it", *tally.evidence))
    if view.no_tokens:
        return Verdict("other", 0.5, ("no tokens looked up, no causal mask", *tally.evidence))
    phase = "prefill" if tally.total > 0 else "decode"
    confidence = _sigmoid(min(abs(tally.total), _CAP))
    if view.fragment:
        return Verdict("other", 1.0 - confidence, (view.fragment, *tally.evidence))
    if confidence < THRESHOLD:
        reasons = tally.evidence or ["no evidence of its phase"]
        return Verdict("other", 1.0 - confidence, tuple(reasons))
    return Verdict(phase, confidence, tuple(tally.evidence))


def _labelled(view: StepView, label: Label, phase: str) -> Verdict:
    """The label decides; shapes are named beside it, and lower the confidence where they contradict it.

    The collector's own label stands on the arguments of the call, so that shapes cannot speak against it.
    """
    evidence = [*(("collector",) if view.collected else ()), f"annotation {label.text}"]
    tally = _weigh(view)
    against = {"prefill": -1.0, "decode": 1.0}.get(phase, 0.0) * tally.total
    evidence += [text for text in tally.evidence if not text.startswith("range")][:3]
    stated = label.tokens
    if not isnan(stated) and 0 < view.tokens < stated:
        evidence.append(f"layer M={view.tokens} < {int(stated)} stated")
    return Verdict(phase, CONTRADICTED if against > 2.0 and not view.collected else LABELLED, tuple(evidence))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x))


def _weigh(view: StepView) -> _Tally:
    tally = _Tally()
    if view.word in ("prefill", "decode"):
        tally.add(WEIGHTS["word"] * (1 if view.word == "prefill" else -1), f"range named {view.word}")
    _weigh_attention(view, tally)
    _weigh_tokens(view, tally)
    if view.tokens < 0:
        _weigh_grids(view, tally)
    if view.hint in ("prefill", "decode"):
        sign = 1 if view.hint == "prefill" else -1
        text = "mostly vector kernels" if view.hint_strength == "vector" else f"{view.hint} attention kernel"
        tally.add(sign * WEIGHTS[f"kernel_{view.hint_strength}"], text)
    if view.tokens < 0 and view.contrast >= CONTRAST:
        tally.add(WEIGHTS["contrast"], f"{view.contrast:.0f} x the blocks of other passes")
    elif view.tokens < 0 and view.contrast <= ALIKE:
        tally.add(-WEIGHTS["contrast"], "few blocks, unlike the longest pass")
    if view.whole_graph:
        tally.add(WEIGHTS["whole_graph"], "one graph replays the step")
    return tally


def _weigh_attention(view: StepView, tally: _Tally) -> None:
    q, k = view.q, view.k
    if q == 1 and k <= 0 < view.batch:
        tally.add(WEIGHTS["one_query_paged"], "q=1 over a paged cache")
    elif q == 1 and k > 1:
        tally.add(WEIGHTS["one_query"], f"q=1 < k={k}")
    elif q == k > 1:
        tally.add(WEIGHTS["same_length"], f"q={q} = k")
    elif 1 < q < k:
        _weigh_part(view, tally)


def _weigh_part(view: StepView, tally: _Tally) -> None:
    """1 < q < k: a chunk of a prompt, a prompt whose prefix was cached, or the verification of a speculation."""
    text = f"q={view.q} < k={view.k}"
    sequences = max(view.batch, view.ids_batch)
    if 0 < view.logits < view.tokens or (sequences > 0 and view.logits == sequences and view.tokens > sequences):
        tally.add(WEIGHTS["chunk_logits"], f"{text}, a chunk or cached prefix")
    elif view.q <= SPECULATION and (view.logits == view.tokens > 0 or (view.repeated >= 3 and not view.growing)):
        tally.add(WEIGHTS["verify"], f"{text}, speculative verify")
    elif view.q >= 32:
        tally.add(WEIGHTS["chunk"], f"{text}, a chunk or cached prefix")
    else:
        tally.add(0.0, f"{text}, ambiguous")


def _weigh_grids(view: StepView, tally: _Tally) -> None:
    """Tokens and sequences as launch grids count them, where no shapes do."""
    tokens, sequences = view.grid_tokens, view.grid_sequences
    if view.grid_above >= SPECULATION:
        tally.add(WEIGHTS["grid_many_each"], f"a query of more than {view.grid_above} tokens by its grid")
    elif tokens > 0 and sequences == tokens:
        tally.add(WEIGHTS["grid_one_each"], f"{tokens} tokens of {sequences} sequences by their grids")
        return  # logits of fewer rows are a padded batch's
    elif tokens == 1:
        tally.add(WEIGHTS["one_token"], "one token by its grid")
    elif view.checked > 1:
        tally.add(WEIGHTS["checked"], f"{view.checked} tokens of each sequence again and again: speculative verify")
        return
    elif tokens > sequences > 0:
        many = tokens >= 32 * sequences
        tally.add(
            WEIGHTS["grid_many_each" if many else "grid_few_each"],
            f"{tokens} tokens of {sequences} sequences by their grids",
        )
    if 0 < view.grid_logits < tokens:
        tally.add(WEIGHTS["fewer_logits"], f"{view.grid_logits} rows of logits of {tokens} tokens by their grids")
    elif view.grid_logits == tokens > 1 and sequences != tokens:
        tally.add(WEIGHTS["all_logits"], f"logits of all {tokens} tokens by their grids")


def _weigh_tokens(view: StepView, tally: _Tally) -> None:
    tokens, logits = view.tokens, view.logits
    part = 1 < view.q < view.k
    whole_prompt = view.q == view.k > 1 or (view.ids_length > 1 and not part)
    if view.ids_length == 1:
        tally.add(WEIGHTS["input_one"], f"input [{view.ids_batch}, 1]")
    elif whole_prompt and view.ids_length > 1:
        tally.add(WEIGHTS["input_many"], f"input [{view.ids_batch}, {view.ids_length}]")
    if 0 < logits < tokens:
        tally.add(WEIGHTS["fewer_logits"], f"lm_head M={logits} < layer M={tokens}")
    elif logits == tokens > 1 and not whole_prompt and not (part and view.q > SPECULATION):
        tally.add(WEIGHTS["all_logits"], f"lm_head M = layer M = {tokens}")
    if tokens == 1:
        tally.add(WEIGHTS["one_token"], "layer M=1")
    elif 1 < tokens <= 8 and not whole_prompt:
        tally.add(WEIGHTS["few_tokens"], f"layer M={tokens}")
    elif tokens >= 2048:
        tally.add(WEIGHTS["very_many_tokens"], f"layer M={tokens}")
    elif tokens >= 512:
        tally.add(WEIGHTS["many_tokens"], f"layer M={tokens}")
