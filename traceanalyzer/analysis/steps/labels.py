"""The step labels that engines, recorders and people write, parsed into facts.

Grammars, each taken from the engine's own source or from a recorded trace:

    vLLM        execute_context_1(888)_generation_0(0), execute_context_1(888_788544)_generation_0(0) (tokens and the
                sum of squared lengths), execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086...),
                execute_new_1_cached_3 (older: how many requests are new says little about the phase of the others)
    SGLang      step[EXTEND bs=2 toks=12 c_sk=20 c_sqsk=120], step[DECODE bs=8 g_sq=8 ...], MIXED, VERIFY, DRAFT, IDLE
    ATOM        prefill[bs=2 tok=14721 ctx=[7803, 6918]], decode[bs=117/128 tok=117] (real/padded), draft[1/3 bs=8]
    ours        ta.step[decode n=17 tokens=2 seqs=2 ctx=80 qk=80]
    words       a range called prefill, decode, extend, encoder, warmup: a hint, not a step; generate: no phase at all
    profiler    ProfilerStep#6 delimits profiler steps, which may hold anything
    capture     capture_32_FULL: graph capture, nothing of it runs

What could be wrong with it: engines change their labels without notice. A label that no grammar matches is no label;
in particular it never means decode. Nor is one with a number that counts nothing: more than `_MOST`, or not in ASCII
digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import isnan, nan
from typing import Literal

from traceanalyzer.analysis.steps.model import FACTS, PHASES

Kind = Literal["step", "word", "profiler", "capture"]


@dataclass(frozen=True, slots=True)
class Label:
    """What one annotation says. Counts are NaN where it does not say; `phase` is None where it names none."""

    kind: Kind
    text: str
    engine: str | None = None
    phase: str | None = None
    tokens: float = nan
    prefill_tokens: float = nan
    decode_tokens: float = nan
    sequences: float = nan
    prefill_sequences: float = nan
    decode_sequences: float = nan
    context_sum: float = nan
    query_context_sum: float = nan
    padded_tokens: float = nan


_MOST_CHARACTERS = 500
"""How much of a name is read: engines shorten theirs, and a grammar must end within it."""
_MOST = 2**53
"""The largest count a float holds exactly; no step has more of anything."""

_VLLM = re.compile(r"^execute_context_(\d+)\((\d+)(?:_(\d+))?\)_generation_(\d+)\((\d+)(?:_\d+)?\)", re.ASCII)
_SUMS = r"\(sq(\d+)sk(\d+)sqsq\d+sqsk(\d+)\)"
_VLLM_DETAILED = re.compile(rf"^execute_(\d+)_context_(\d+){_SUMS}_generation_(\d+){_SUMS}", re.ASCII)
_VLLM_OLD = re.compile(r"^execute_new_(\d+)_cached_(\d+)", re.ASCII)
_SGLANG = re.compile(r"^step\[([A-Z][A-Z_0-9]*)\b([^\]]*)\]")
_ATOM = re.compile(r"^(?:eager_)?(prefill|decode)\[(bs=.*)\]")
_ATOM_DRAFT = re.compile(r"^(draft)\[\d+/\d+\s+(bs=.*)\]")
_OURS = re.compile(r"^ta\.step\[(\w+)\b([^\]]*)\]", re.IGNORECASE | re.ASCII)
_STEPS = (_VLLM_DETAILED, _VLLM, _VLLM_OLD, _SGLANG, _ATOM, _ATOM_DRAFT, _OURS)
_PROFILER = re.compile(r"^ProfilerStep#\d+")
_CAPTURE = re.compile(r"^capture_\d+_\w+")
_WORD = re.compile(
    r"(?<![a-z])(prefill|decod(?:e|ing)|extend|generate|encoder|vision_tower|warm_?up|dummy_run|draft)(?![a-z])",
    re.IGNORECASE,
)
_NO_WORD = re.compile(
    r"token|audio|image|video|jpe?g|utf|string|text|base64|schedul|decoder|^##|^aten::", re.IGNORECASE
)
_PAIR = re.compile(r"(?<!\w)(\w+)=(\[[^][=]*\]\S*|\S+)", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)

_SGLANG_PHASES = {
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "PREBUILT": "prefill",
    "DECODE": "decode",
    "MIXED": "mixed",
    "VERIFY": "decode",
    "TARGET_VERIFY": "decode",
    "IDLE": "other",
}
_OF_SEQUENCES = ("sequences", "prefill_sequences", "decode_sequences", "context_sum", "query_context_sum")
_OUR_PHASES = frozenset(PHASES) - {"capture"}
_WORD_PHASES = {
    "prefill": "prefill",
    "extend": "prefill",
    "decode": "decode",
    "decoding": "decode",
    "encoder": "encoder",
    "vision_tower": "encoder",
    "warmup": "warmup",
    "warm_up": "warmup",
    "dummy_run": "warmup",
    "draft": "draft",
}


@lru_cache(maxsize=65_536)
def parse(name: str) -> Label | None:
    """The label an annotation name carries, or None. Parsed once per distinct name.

    Args:
        name: the annotation exactly as recorded; its first `_MOST_CHARACTERS` are read.
    """
    whole, name = len(name), name[:_MOST_CHARACTERS]
    if any(grammar.match(name) for grammar in _STEPS) and not _countable(name):
        return None
    for read in (_vllm_detailed, _vllm, _vllm_old, _sglang, _atom, _ours):
        label = read(name)
        if label is not None:
            return _possible(label)
    if _PROFILER.match(name):
        return Label("profiler", "ProfilerStep")
    if _CAPTURE.match(name):
        return Label("capture", _short(name), phase="capture")
    word = _WORD.search(name)
    if word and whole <= 80 and not _NO_WORD.search(name):
        return Label("word", _short(name), phase=_WORD_PHASES.get(word.group(1).lower()))
    return None


def is_ours(label: Label | None) -> bool:
    """Whether a label is written as the collector writes them; the inner one of two decides."""
    return label is not None and label.text.startswith("ta.step[")


def merge(outer: Label, inner: Label) -> Label:
    """One label for two that enclose the same work: the inner one's word where it has one, all facts of both."""
    facts = {name: getattr(outer, name) if isnan(getattr(inner, name)) else getattr(inner, name) for name in FACTS}
    phase = "capture" if "capture" in (outer.phase, inner.phase) else inner.phase or outer.phase
    return Label(kind="step", text=inner.text, engine=inner.engine or outer.engine, phase=phase, **facts)


def _countable(name: str) -> bool:
    """Whether every number in a name can be a count."""
    plain = all(letter.isascii() for letter in name if letter.isdigit())
    return plain and all(int(number) <= _MOST for number in _NUMBER.findall(name))


def _possible(label: Label) -> Label | None:
    """The label without the counts that cannot be: negative ones, and those of no sequences; None with absurd sums."""
    stated = {name: getattr(label, name) for name in FACTS}
    if any(value > _MOST for value in stated.values()):
        return None
    without = _OF_SEQUENCES if label.sequences == 0 else ()
    facts = {name: nan if value < 0 or name in without else value for name, value in stated.items()}
    return Label(label.kind, label.text, label.engine, label.phase, **facts)


def _short(name: str) -> str:
    return name if len(name) <= 32 else name[:31] + "…"


def _split(
    text: str, engine: str, prefill: tuple[int, float], decode: tuple[int, float], context: float, pairs: float
) -> Label:
    """A label that counts (sequences, tokens) of both kinds: both present is a mixed step, neither is no phase."""
    (prefills, prefill_tokens), (decodes, decode_tokens) = prefill, decode
    phase = None
    if prefills or decodes:
        phase = "mixed" if prefills and decodes else "prefill" if prefills else "decode"
    return Label(
        kind="step", text=text, engine=engine, phase=phase or "other", tokens=prefill_tokens + decode_tokens,
        prefill_tokens=prefill_tokens, decode_tokens=decode_tokens, sequences=float(prefills + decodes),
        prefill_sequences=float(prefills), decode_sequences=float(decodes), context_sum=context,
        query_context_sum=pairs,
    )  # fmt: skip


def _vllm_detailed(name: str) -> Label | None:
    match = _VLLM_DETAILED.match(name)
    if not match:
        return None
    n = [int(g) for g in match.groups()]
    text = f"execute_context_{n[1]}_generation_{n[5]}"
    return _split(text, "vLLM", (n[1], n[2]), (n[5], n[6]), float(n[3] + n[7]), float(n[4] + n[8]))


def _vllm(name: str) -> Label | None:
    """Where a single prompt's square is its tokens', its queries are all its keys: it has no cached prefix."""
    match = _VLLM.match(name)
    if not match:
        return None
    prefills, tokens, decodes, decoded = (int(match[group]) for group in (1, 2, 4, 5))
    alone = (prefills, decodes) == (1, 0) and match[3] is not None and int(match[3]) == tokens**2
    context, pairs = (float(tokens), float(tokens**2)) if alone else (nan, nan)
    text = f"execute_context_{prefills}_generation_{decodes}"
    return _split(text, "vLLM", (prefills, tokens), (decodes, decoded), context, pairs)


def _vllm_old(name: str) -> Label | None:
    """New requests bring a prompt; a cached one may decode or continue its prompt: no phase."""
    match = _VLLM_OLD.match(name)
    if not match:
        return None
    new, cached = int(match.group(1)), int(match.group(2))
    phase = "prefill" if new and not cached else None
    return Label("step", _short(name), "vLLM", phase, sequences=float(new + cached))


def _numbers(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text))


def _number(pairs: dict[str, str], *keys: str) -> float:
    """The first of the keys that holds a plain count, else NaN."""
    for key in keys:
        if _NUMBER.fullmatch(pairs.get(key, "")):
            return float(pairs[key])
    return nan


def _sum(*values: float) -> float:
    """The sum of what is known; NaN where nothing is."""
    known = [v for v in values if not isnan(v)]
    return sum(known) if known else nan


def _sglang(name: str) -> Label | None:
    match = _SGLANG.match(name)
    if not match:
        return None
    mode, pairs = match.group(1), _numbers(match.group(2))
    phase = "draft" if mode.startswith("DRAFT") else _SGLANG_PHASES.get(mode, "other")
    sequences, padded = _number(pairs, "raw_bs", "bs"), _number(pairs, "bs")
    prefill_tokens, decode_tokens = _number(pairs, "c_sq", "toks"), _number(pairs, "g_sq")
    if mode == "DECODE" and isnan(decode_tokens):
        decode_tokens = sequences
    tokens = _sum(prefill_tokens, decode_tokens)
    split: tuple[float, float] = (nan, nan)
    if phase == "mixed":
        split = (_number(pairs, "c"), _number(pairs, "g"))
        sequences = _sum(*split) if not isnan(_sum(*split)) else sequences
    elif phase == "prefill":
        split, decode_tokens = (sequences, 0.0), 0.0
    elif phase == "decode":
        split, prefill_tokens = (0.0, sequences), 0.0
    return Label(
        kind="step", text=f"step[{mode}]", engine="SGLang", phase=phase, tokens=tokens, sequences=sequences,
        prefill_tokens=prefill_tokens, decode_tokens=decode_tokens, prefill_sequences=split[0],
        decode_sequences=split[1], context_sum=_sum(_number(pairs, "c_sk"), _number(pairs, "g_sk")),
        query_context_sum=_sum(_number(pairs, "c_sqsk"), _number(pairs, "g_sqsk")),
        padded_tokens=padded - sequences if "raw_bs" in pairs else nan,
    )  # fmt: skip


def _atom(name: str) -> Label | None:
    match = _ATOM.match(name) or _ATOM_DRAFT.match(name)
    if not match:
        return None
    pairs = _numbers(match.group(2))
    real, _, padded = pairs.get("bs", "").partition("/")
    sequences = float(real) if _NUMBER.fullmatch(real) else nan
    phase = match.group(1)
    tokens = _number(pairs, "tok")
    prefills, decodes = _number(pairs, "p"), _number(pairs, "d")
    if phase == "decode" and prefills > 0:
        phase = "mixed"
    per_sequence = tokens / sequences if sequences and not isnan(tokens) else 1.0
    split = {"prefill": (sequences, 0.0), "decode": (0.0, sequences), "mixed": (prefills, decodes)}
    return Label(
        kind="step", text=_short(name), engine="ATOM", phase=phase, tokens=tokens, sequences=sequences,
        prefill_tokens={"prefill": tokens, "decode": 0.0}.get(phase, nan),
        decode_tokens={"prefill": 0.0, "decode": tokens}.get(phase, nan),
        prefill_sequences=split.get(phase, (nan, nan))[0], decode_sequences=split.get(phase, (nan, nan))[1],
        context_sum=_sum(_number(pairs, "sk")) if "sk" in pairs else _listed(pairs.get("ctx", "")),
        query_context_sum=_number(pairs, "sqsk"),
        padded_tokens=(float(padded) - sequences) * per_sequence if _NUMBER.fullmatch(padded) else nan,
    )  # fmt: skip


def _listed(text: str) -> float:
    """The sum of a context list; NaN where the engine shortened it ("[1, 2, 3]...+4")."""
    if not re.fullmatch(r"\d+|\[[\d,\s]*\]", text, re.ASCII):
        return nan
    return float(sum(int(n) for n in _NUMBER.findall(text)))


def _ours(name: str) -> Label | None:
    match = _OURS.match(name)
    if not match:
        return None
    phase, pairs = match.group(1).lower(), _numbers(match.group(2))
    phase = phase if phase in _OUR_PHASES else "other"
    tokens, sequences = _number(pairs, "tokens"), _number(pairs, "seqs")
    prefill_tokens, decode_tokens = _number(pairs, "prefill_tokens"), _number(pairs, "decode_tokens")
    prefills, decodes = _number(pairs, "prefill_seqs"), _number(pairs, "decode_seqs")
    if phase == "prefill":
        prefill_tokens, decode_tokens, prefills, decodes = tokens, 0.0, sequences, 0.0
    elif phase == "decode":
        prefill_tokens, decode_tokens, prefills, decodes = 0.0, tokens, 0.0, sequences
    return Label(
        kind="step", text=f"ta.step[{phase}]", phase=phase, tokens=tokens, prefill_tokens=prefill_tokens,
        decode_tokens=decode_tokens, sequences=sequences, prefill_sequences=prefills, decode_sequences=decodes,
        context_sum=_number(pairs, "ctx"), query_context_sum=_number(pairs, "qk"),
        padded_tokens=_number(pairs, "padded"),
    )  # fmt: skip
