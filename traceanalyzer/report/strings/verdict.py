"""The verdict: one sentence that says what binds the run, with its numbers, and sentences for what does not help.

What could be wrong: a sentence is only as good as the bound it is given. It names the figures it rests on, so that a
reader can disagree; figures that are not known are left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report.strings.labels import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineFacts:
    """What a headline may quote; None where it is not known. Shares are of the phase's time, or of a peak.

    `step_us` is the step's time, or where `floor_ratio` is known the time that is set against the floor;
    `step_bytes` the weights and KV cache that a decode step reads for its `sequences`; `whole_steps` how many were
    recorded whole. `phase` is the phase the verdict speaks about, None for the whole run. `by_tokens`: the bound
    follows from `tokens_per_step` against the `ridge` (FLOP per byte), because the work of the kernels is not recorded.
    `no_peaks`: the limits of the device are not known.
    """

    workload: str = "unknown"
    phase: str | None = None
    time_share: float | None = None
    step_us: float | None = None
    step_bytes: float | None = None
    floor_ratio: float | None = None
    bandwidth_share: float | None = None
    compute_share: float | None = None
    idle_share: float | None = None
    communication_share: float | None = None
    no_tensor_core_share: float | None = None
    gpu_util: float | None = None
    on_cpu: bool = False
    tokens_per_step: float | None = None
    sequences: float | None = None
    whole_steps: int | None = None
    ridge: float | None = None
    by_tokens: bool = False
    no_peaks: bool = False


RULED_OUT: Mapping[str, str] = {
    "more_compute": "More compute does not help {phase}: the arithmetic already waits for something else.",
    "more_bandwidth": "More memory bandwidth does not help {phase}: the bytes are not what takes the time.",
    "fewer_launches": "Graphs or fewer launches do not help {phase}: the GPU hardly ever waits for the host.",
    "larger_batch": "A larger batch does not help {phase}: the arithmetic is already the limit.",
}
"""What has been looked at and does not help a phase, by code."""


def headline(bound: str, facts: HeadlineFacts) -> str:
    """One sentence: what binds the phase, and the figures that say so.

    Args:
        bound: memory, compute, host, communication, mixed or unknown.
        facts: the figures to quote.
    """
    if facts.workload == "training":
        return _sentence("This is a training run, not generation", _busy_clauses(facts))
    if facts.workload == "capture":
        return "This trace holds a graph capture: hardly anything ran on the GPU, so it says nothing about speed."
    subject = PHASES.get(facts.phase, "The run") if facts.phase else "The run"
    if facts.by_tokens:
        return " ".join([_by_tokens(subject, facts), *_step_sentence(facts)])
    if bound == "memory" and facts.phase == "decode" and fmt.known(facts.step_bytes) and fmt.known(facts.floor_ratio):
        return _reads(facts)
    idle = "no operator runs" if facts.on_cpu else "the GPU is idle"
    clauses = {
        "memory": (_clause("it uses {} of the memory bandwidth", facts.bandwidth_share),
                   _clause("and {} of the compute peak", facts.compute_share),
                   _no_tensor_core_clause(facts)),
        "compute": (_clause("it uses {} of the compute peak", facts.compute_share),
                    _clause("and {} of the memory bandwidth", facts.bandwidth_share)),
        "host": (_clause(f"{idle} {{}} of the time", facts.idle_share),
                 _clause("while memory bandwidth is used to {}", facts.bandwidth_share)),
        "communication": (_clause("{} of the time goes to moving data between GPUs", facts.communication_share),),
        "mixed": (_clause(f"{idle} {{}} of the time", facts.idle_share),
                  _clause("it uses {} of the memory bandwidth", facts.bandwidth_share),
                  _clause("and {} of the compute peak", facts.compute_share)),
        "unknown": _busy_clauses(facts),
    }  # fmt: skip
    said = [clause for clause in clauses.get(bound, clauses["unknown"]) if clause]
    limits = "without the device's peaks" if facts.no_peaks else "from this trace"
    opening = _OPENINGS.get(bound, _OPENINGS["unknown"]).format(subject, within=subject.lower(), limits=limits)
    text = _sentence(opening, said)
    if facts.phase and facts.whole_steps == 0:
        return f"No whole {facts.phase} step was recorded; from what was: {text[0].lower()}{text[1:]}"
    return " ".join([text, *_step_sentence(facts)])


def ruled_out(code: str, phase: str | None) -> str:
    """The sentence for something that does not help a phase, None the run; a code without one is spelt out."""
    named = _IN_A_SENTENCE.get(phase, phase) if phase else "the run"
    return RULED_OUT.get(code, code.replace("_", " ")).format(phase=named)


_IN_A_SENTENCE: Mapping[str, str] = {"mixed": "mixed steps", "encoder": "the encoder"}
"""Phases whose bare name is no noun."""


_OPENINGS: Mapping[str, str] = {
    "memory": "{} is bound by memory bandwidth",
    "compute": "{} is bound by compute",
    "host": "{} is bound by the host, which cannot feed the GPU fast enough",
    "communication": "{} is bound by communication",
    "mixed": "{} has no single bound",
    "unknown": "What binds {within} cannot be told {limits}",
}


def _by_tokens(subject: str, facts: HeadlineFacts) -> str:
    """With M tokens per step a byte of weights gives 2 M / b FLOP, at b of half a byte at least: 4 M."""
    count, ridge = facts.tokens_per_step or 0.0, facts.ridge or 0.0
    tokens = "1 token" if count == 1 else f"{count:,.0f} tokens"
    return (
        f"{subject} is most likely bound by memory bandwidth: with {tokens} per step a byte of weights gives at most "
        f"{4 * count:,.0f} FLOP, even in 4 bits, and this GPU needs {ridge:,.0f} to be bound by compute. The work of "
        "its kernels is not recorded."
    )


def _reads(facts: HeadlineFacts) -> str:
    """The lesson in the run's own numbers: what a step reads for its few tokens, and that busy is not useful."""
    reads = f"each step reads {fmt.size(facts.step_bytes)} of weights and KV cache{_served(facts)}"
    least = fmt.duration((facts.step_us or 0.0) / (facts.floor_ratio or 1.0))
    against = f"{least} at full bandwidth, {fmt.duration(facts.step_us)} as measured"
    used = [f"{fmt.percent(share)} of its {what}"
            for share, what in ((facts.bandwidth_share, "memory bandwidth"), (facts.compute_share, "compute peak"))
            if fmt.known(share)]  # fmt: skip
    said = f"Decode is bound by memory: {reads}, {against}."
    if facts.gpu_util is None or not used:
        return said
    return f"{said} The GPU is busy {fmt.percent(facts.gpu_util)} of the time, yet decode uses {' and '.join(used)}."


def _served(facts: HeadlineFacts) -> str:
    if not fmt.known(facts.sequences):
        return ""
    count = fmt.count(facts.sequences)
    return f" for {count} {'sequence' if count == '1' else 'sequences'}"


def _no_tensor_core_clause(facts: HeadlineFacts) -> str | None:
    """Worth saying where most of a memory-bound phase is spent outside matrix products: it can be fused away."""
    share = facts.no_tensor_core_share
    return _clause("{} of its time goes to kernels without tensor cores", share) if (share or 0.0) >= 0.4 else None


def _busy_clauses(facts: HeadlineFacts) -> list[str]:
    if facts.on_cpu:
        busy = _clause("operators run {} of its time", None if facts.idle_share is None else 1.0 - facts.idle_share)
        return [busy] if busy else []
    return [
        clause
        for clause in (
            _clause("a kernel runs {} of the time", facts.gpu_util),
            _clause("{} of the time goes to kernels without tensor cores", facts.no_tensor_core_share),
            _clause("the GPU is idle {} of the time", facts.idle_share) if facts.gpu_util is None else None,
        )
        if clause
    ]


def _step_sentence(facts: HeadlineFacts) -> list[str]:
    if not fmt.known(facts.step_us):
        return []
    if not fmt.known(facts.floor_ratio):
        return [f"A step takes {fmt.duration(facts.step_us)}."]
    step, ratio = fmt.duration(facts.step_us), fmt.factor(facts.floor_ratio)
    return [f"A step takes {step} from start to start, {ratio} its floor."]


def _clause(template: str, share: float | None) -> str | None:
    return template.format(fmt.percent(share)) if fmt.known(share) else None


def _sentence(opening: str, clauses: list[str] | tuple[str, ...]) -> str:
    if not clauses:
        return f"{opening}."
    first, *rest = clauses
    joined = first
    for clause in rest:
        joined += f" {clause}" if clause.startswith(("and ", "while ")) else f", {clause}"
    joined = joined.removeprefix("and ").removeprefix("while ")
    return f"{opening}: {joined}."
