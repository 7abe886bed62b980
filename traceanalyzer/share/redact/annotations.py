"""Which annotations stay: those that engines, PyTorch and the recorder write, and whose words say no more than that.

A label of an engine's step keeps its phase and its numbers. Anything else becomes `annotation:<hash>`, and keeps the
one word that says what the step is (`annotation:<hash>.decode`), where it has one. So two annotations that differ still
differ, and the analysis reads the same steps (a test holds this against `analysis.steps.labels`). What could be wrong:
an engine's new label is hashed until it is listed here, and its steps are then not read from a redacted trace.
"""

from __future__ import annotations

import re

from traceanalyzer.share.redact.levels import digest

_LONGEST = 500
"""How much of a name is read as a label; as much as `analysis.steps.labels` reads."""
_LONGEST_WORD = 80
_SUMS = r"\(sq\d+sk\d+sqsq\d+sqsk\d+\)"
_COUNTED = re.compile(
    rf"execute_\d+_context_\d+{_SUMS}_generation_\d+{_SUMS}"
    r"|execute_context_\d+\(\d+(?:_\d+)?\)_generation_\d+\(\d+(?:_\d+)?\)|execute_new_\d+_cached_\d+"
    r"|ProfilerStep#\d+",
    re.ASCII,
)
_CAPTURE = re.compile(r"(capture_\d+_)(?=\w)(?:[A-Z_]{1,40}\Z)?")
_BRACKETED = re.compile(
    r"(?P<head>step\[[A-Z][A-Z_0-9]*\b|(?i:ta\.step)\[\w+\b)(?P<facts>[^\]]*)\]"
    r"|(?P<other>(?:(?:eager_)?(?:prefill|decode)|draft(?=\[\d+/\d+\s))\[(?:\d+/\d+\s+)?)(?P<some>bs=.*)\]",
    re.ASCII,
)
_PAIR = re.compile(
    r"(?<!\w)[A-Za-z_]{1,24}=(?:\[[\d,\s]*\](?:\.{3}\+\d+)?|\d+(?:/\d+)?(?:\.\d+)?)(?=[\s\]]|\Z)", re.ASCII
)
_PLAIN_PAIRS = re.compile(rf"\s?(?:{_PAIR.pattern}\s?)*", re.ASCII)
_WORD = re.compile(
    r"(?<![a-z])(prefill|decod(?:e|ing)|extend|generate|encoder|vision_tower|warm_?up|dummy_run|draft)(?![a-z])",
    re.IGNORECASE,
)
_NO_WORD = re.compile(
    r"token|audio|image|video|jpe?g|utf|string|text|base64|schedul|decoder|^##|^aten::", re.IGNORECASE
)
_VOCABULARY = (
    "prefill|decode|decoding|extend|generate|encoder|vision_tower|warmup|warm_up|dummy_run|draft|forward|backward|step"
    "|batch|run|model|phase|pass|mixed|verify|idle|prompt|sample|sampling|attention|mlp|layer|lm_head|embedding|norm"
    "|optimizer|loss|kernel|graph|capture|replay|eager|target|eagle|mtp|moe|logits|preprocess|postprocess"
)
_WORDS = re.compile(
    rf"(?:(?:{_VOCABULARY})\d{{0,6}}|\d{{1,6}})(?:[ _./:#\[\]()=-]{{1,2}}(?:{_VOCABULARY}|\d{{1,6}}))*[\])]?",
    re.IGNORECASE | re.ASCII,
)
_SYMBOL = r"[A-Za-z_]\w{0,80}"
_KNOWN = re.compile(
    r"## Call CompiledFxGraph [a-z2-7]{1,64} ##|## (?:forward|backward|optimizer|zero_grad) ##"
    r"|Torch-Compiled Region: \d+/\d+(?:_\d+)?|(?:TorchDynamo|AOTDispatcher|Pregraph|Inductor)[ \w]{0,60}"
    r"|autograd::engine::evaluate_function: [A-Za-z_][\w:]{0,120}"
    rf"|Optimizer\.(?:step|zero_grad)#{_SYMBOL}\.{_SYMBOL}|enumerate\(DataLoader\)#{_SYMBOL}\.__next__"
    r"|(?:DistributedDataParallel|DataParallel)\.forward|FSDP2?::[\w. ()-]{1,80}|FullyShardedDataParallel\.\w{1,40}"
    rf"|record_param_comms|(?:nccl|gloo|mpi|ucc|rccl|xccl):_?[a-z_0-9]{{1,60}}|nn\.Module: {_SYMBOL}"
    rf"|triton_{_SYMBOL}|(?:Compiled(?:Function|AutogradEngine)|CompiledFxGraph|AutogradEngine)\w{{0,40}}"
    r"|Iteration Start: PyTorch Profiler|PyTorch Profiler(?: \(\d+\))?|\[memory\]|Record Window End"
    r"|gpu_model_runner: (?:forward|preprocess|postprocess|sample|bookkeep|draft|eplb|ModelRunnerOutput)"
    r"|(?:schedule|llm_engine step|ngram_proposer_gpu): [a-z_]{1,40}"
    r"|(?:run_batch|recv_requests|process_batch_result|get_next_batch_to_run|copy_result_to_cpu|EMPTY_CACHE)",
    re.ASCII,
)
_REPLACED = re.compile(r"annotation:[0-9a-f]{12}(?:\.[a-z_]{4,12})?", re.ASCII)


def annotation(text: str, said: str) -> str:
    """What an annotation is called after redaction; the same text where it may stay.

    Args:
        text: what it was called.
        said: that without addresses and the like, for the hash: they could be guessed.
    """
    if len(text) <= _LONGEST and (_KNOWN.fullmatch(text) or _REPLACED.fullmatch(text) or _WORDS.fullmatch(text)):
        return text
    read = text[:_LONGEST]
    if counted := _COUNTED.match(read):
        return text if counted.end() == len(text) else counted.group()
    if capture := _CAPTURE.match(read):
        return text if capture.end() == len(text) else f"{capture[1]}OTHER"
    if bracketed := _BRACKETED.match(read):
        return _numbers(text, bracketed)
    word = _WORD.search(text)
    if word and len(text) <= _LONGEST_WORD and not _NO_WORD.search(text):
        return f"annotation:{digest(said)}.{word.group(1).lower()}"
    return f"annotation:{digest(said)}"


def is_listed(text: str) -> bool:
    """Whether a name is one that PyTorch or an engine gives a range of work, other than by its numbers."""
    return bool(_KNOWN.fullmatch(text[:_LONGEST])) and len(text) <= _LONGEST


def _numbers(text: str, found: re.Match[str]) -> str:
    """A label in brackets with its numbers alone."""
    head, facts = (found["head"], found["facts"]) if found["head"] else (found["other"], found["some"])
    if found.end() == len(text) and _PLAIN_PAIRS.fullmatch(facts):
        return text
    pairs = _PAIR.findall(facts)
    if found["other"] and not (pairs and pairs[0].startswith("bs=")):
        pairs.insert(0, "bs=?")  # without it the label is another one
    return f"{head.rstrip()}{'' if head.endswith('[') or not pairs else ' '}{' '.join(pairs)}]"
