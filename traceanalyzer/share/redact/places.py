"""What may stand in which place of an event: names by category, arguments by key, and what else is text.

    names        kernels, runtime calls, Python functions: as they are, but for shapes; ops: what looks like an op;
                 annotations: see `annotations`; anything else: a word, or a hash
    arguments    known ones as they are, but for shapes; of others numbers and single words stay; under a key that tells
                 of a credential nothing stays but a small number, and under one of an environment all is hashed
    Concrete Inputs   numbers, flags, types and devices; a text becomes `input:<hash>`
    processes    the program's name without its arguments

Each rule gives the text that takes a text's place, and counts why. What could be wrong: one word may say much.
"""

from __future__ import annotations

import re
from collections import Counter

from traceanalyzer.share.redact.annotations import annotation, is_listed
from traceanalyzer.share.redact.levels import Level, digest
from traceanalyzer.share.redact.shapes import Scrubbed, Shapes

ANNOTATIONS = frozenset(("user_annotation", "gpu_user_annotation"))
OPS = frozenset(("cpu_op", "Operator"))
COMPILED = frozenset((
    "kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "cuda_runtime", "cuda_driver", "Runtime",
    "Driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "cuda_sync", "xpu_sync", "mtia_runtime",
    "mtia_ccp_events", "privateuse1_runtime", "privateuse1_driver", "ac2g", "fwdbwd", "async", "async_cpu_to_gpu",
    "async_gpu", "overhead", "cuda_event", "mtia_insight", "mtia_counters", "hpu_op", "glow_runtime",
))  # fmt: skip
"""Categories whose names come from compiled code."""
PYTHON = "python_function"
CATEGORIES = COMPILED | ANNOTATIONS | OPS | {
    PYTHON, "cpu_instant_event", "Trace", "cuda_profiler_range", "collective_comm", "external_correlation",
}  # fmt: skip
"""Categories that PyTorch writes."""
INPUTS = "Concrete Inputs"
ARROWS = frozenset(("ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu"))
"""Categories of arrows."""
FLOWS = ARROWS | {"launch"}
"""Names of arrows."""
_SYMBOLS = frozenset(("kernel", "Kernel", "kernel_name"))
"""Keys under which a kernel is named."""
_CODE = frozenset((
    "Input type", "Input Dims", "Input dims", "Input Strides", "kernel_hash", "kernel_backend", "kernel_kwargs",
    "kernel_file", "grid", "block", "cuda_sync_kind", "dtype", "Collective name", "Process Group Ranks",
    "In split size", "Out split size", "Trace name", "Call stack", "Module Hierarchy", "backend_config", "nccl_version",
))  # fmt: skip
"""Keys whose texts come from PyTorch or a compiler."""
_WORDED = frozenset((
    "kernel", "Kernel", "kernel_name", "kind", "direction", "trace_id", "displayTimeUnit", "backend", "ph", "bp", "s",
    "id", "ts", "dur", "Ev Idx", "Fwd thread id",
))  # fmt: skip
"""Keys of which PyTorch says one word, which stays at every level."""
_FACTS = frozenset((
    "name", "architecture", "fingerprint", "dtype", "kv_dtype", "quantization", "attention", "driver",
    "throttle_reasons", "recorder", "reason", "closed_by", "engine", "engine_version", "torch", "recording", "mode",
    "trigger", "phase", "source",
))  # fmt: skip
"""Keys of the recorder's block whose texts the recorder or the engine wrote."""
_STACKS = frozenset(("Call stack", "Module Hierarchy", "kernel_file", "Trace name"))
_FRAMES = frozenset(("Call stack", "Module Hierarchy", "kernel_file"))
"""Keys of texts with blanks: functions may be called anything."""
_PROSE = re.compile(r"(?<!\bunsigned)(?<!\bsigned)(?<!\blong)(?<!\bshort)(?<!\bconst)(?<=[^\W\d_])\s+[^\W\d_]")
_TELLING = re.compile(
    r"pass(?!(?:es|ed|ing)\Z)|pwd|secret|token_?\d*\Z|(?:api|access|private|ssh|encryption)[ _-]?key"
    r"|credential|cookie|bearer|auth(?!or(?!i))",
    re.IGNORECASE,
)
"""What a key says under which a credential stands."""
_LONGEST_TELLING = 64
_ENVIRONMENT = re.compile(r"(?:os[._])?env(?:iron(?:ment)?)?(?:[_-]?var(?:iable)?s?)?", re.IGNORECASE)
_SMALL = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?|", re.ASCII)
_UNMARKED = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{32,}(?![A-Za-z0-9])", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_IDENTIFIED = frozenset(("trace_id", "fingerprint", "recording", "graph_id"))
"""Keys of long numbers that are no credentials."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:+#-]{0,47}|annotation:[0-9a-f]{12}", re.ASCII)
_NUMBERS = re.compile(r"(?:[\s,\[\]()+-]|0x[0-9a-fA-F]{1,16}+|\d++(?:\.\d*+)?+(?:[eE][+-]?\d{1,3})?+)*+", re.ASCII)
_FIXED = re.compile(
    r"(?:(?:Trace )?PyTorch Profiler|stream|thread|GPU|CPU|XPU|MTIA|HPU|Spans|Traces)(?: ?\(?\d{1,20}\)?)? ?"
    r"|\d{1,20} bytes"
    r"|(?:Event|Context|Stream) (?:Sync|Wait Event)|Dispatch (?:Kernel|Task)"
    r"|\[(?:credential|email|home|path|host|tmp|user|address|removed)\]|",
    re.ASCII,
)
_INPUT = re.compile(
    r"(?:True|False|None|-?inf|nan|[\s,\[\]()]|-?\d++(?:\.\d*+)?+(?:[eE][+-]?\d{1,3})?+[jL]?)*+"
    r"|(?:cuda|cpu|xpu|hip|mps|meta|hpu)(?::\d{1,4})?|(?:torch|c10)[.:]{1,2}[A-Za-z]\w{0,31}"
    r"|(?:auto|fp8(?:_e[45]m[23]\w{0,8})?|bf16|bfloat16|fp16|float16|half|float|float32|double|u?int\d{1,2}|bool|strided"
    r"|mean|sum|none|tanh|silu|gelu|relu|swiglu|sigmoid|softmax|default|e[45]m[23]\w{0,4}|NHD|HND|max|min|avg|trunc|floor)",
    re.ASCII,
)
_REPLACED = re.compile(r"(?:input|text|key|name|process|thread|python|op):[0-9a-f]{12}", re.ASCII)
_GROUPED = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_UNCLOSED = re.compile(r"[<(\[{].*\Z", re.DOTALL)
_DECLARED = re.compile(
    r"(?:(?:void|int|float|bool|auto|static|inline|const|unsigned|std::\S+)\s+){0,4}\S*(?:\s+const)?\s?", re.ASCII
)
_LONGEST_OP = 2000
_THREAD = re.compile(r"(thread -?\d{1,20} \()(.*)\)", re.DOTALL | re.ASCII)
_PROGRAM = re.compile(r"(?:.*[\\/])?([A-Za-z0-9_.:+#-]{1,48})", re.ASCII)
_LABELS = re.compile(r"(?:(?:CPU|GPU|XPU|MTIA|HPU)(?: \d{1,9})?)?", re.ASCII)
_KEY = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.%/()#:+-]{0,63}|-?\d{1,20}|(?:host:|\[(?:user|path|credential)\])\S{0,64}|", re.ASCII
)
_SPACED = frozenset((
    "Concrete Inputs", "Input Dims", "Input dims", "Input type", "Input Strides", "External id", "external id",
    "Call stack", "Module Hierarchy", "Trace name", "Trace iteration", "Sequence number", "Fwd thread id",
    "Record function id", "Ev Idx", "Profiler Event Index", "Python id", "Python parent id", "Python module id",
    "Python thread", "graph id", "graph node id", "est. achieved occupancy %", "blocks per SM", "warps per SM",
    "registers per thread", "shared memory", "memory bandwidth (GB/s)", "memory bandwidth", "Device Id", "Device Type",
    "Total Allocated", "Total Reserved", "Collective name", "In msg nelems", "Out msg nelems", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks", "Group size",
    "Global rank start", "Global rank stride", "Src Rank", "Dst Rank", "From Rank", "To Rank", "Comms Id",
    "Is asynchronized op", "grid dim", "block dim", "stream priority", "mem size", "GPU Time (us)", "CPU Time (us)",
    "Num warps", "Op count", "Kernel file", "Ev idx", "Wait Event Record Id", "wait on stream", "wait on event id",
))  # fmt: skip
"""Keys of several words that PyTorch and Kineto write."""
_FRAME = re.compile(
    r"\S*|\S+\(\d+\): \S+|<built-in (?:function|method) .*>|<(?:frozen [\w.]+|string)>\(\d+\): \S+"
    r"|nn\.Module: \w{1,80}",
    re.ASCII | re.DOTALL,
)
_PACKAGED = re.compile(
    r"<built-in (?:function|method) \w*(?: of .*)?>|<(?:frozen [\w.]+|string)>\(\d+\): [\w<>.]+|nn\.Module: \w{1,80}"
    r"|(?:(?:torch|vllm|sglang|transformers|triton|flash_attn|flashinfer|numpy|accelerate|aiter)\w*/\S+"
    r"|inspect|typing|os|threading|contextlib|functools|tokenize|enum|re|json|weakref|collections|abc|copy)\.py\(\d+\)"
    r": [\w<>.]+",
    re.ASCII | re.DOTALL,
)
_REMOVED = "[removed]"
_CREDENTIAL = "[credential]"


class Places:
    """The rules for one file.

    Args:
        shapes: what is known by its shape.
        level: how much is taken out; not "none".
    """

    def __init__(self, shapes: Shapes, level: Level) -> None:
        """Keep the rules of one level."""
        self._scrub = shapes.scrub
        self._strict = level == "strict"

    def name(self, category: str | None, text: str) -> Scrubbed:
        """The name of an event of a category, None for one without."""
        if category in ANNOTATIONS:
            return self._annotated(text)
        if category in ARROWS:
            return self.arrow(text)
        if category in COMPILED:
            return self._scrub(text, prose=False)
        if category == PYTHON:
            return self._function(text)
        if category in OPS:
            return self._scrub(text, prose=False) if _is_op(text) else self._annotated(text)
        if is_listed(text) or _FIXED.fullmatch(text):
            return Scrubbed(text, Counter())
        return self._worded("name", "names", text)

    def arrow(self, text: str) -> Scrubbed:
        """The name of an arrow from event to event."""
        if text in FLOWS or _REPLACED.fullmatch(text):
            return Scrubbed(text, Counter())
        found = self._scrub(text)
        return Scrubbed(f"name:{digest(found.text)}", found.kinds or Counter(names=1))

    def argument(self, key: str, text: str) -> Scrubbed:
        """A text that stands under a key, or in a list under it."""
        if is_telling(key):
            return self.credential(key, text)
        if key == INPUTS:
            return self._input(text)
        if key == "cat" and text in CATEGORIES:
            return Scrubbed(text, Counter())
        if key in _CODE:
            if self._strict and key in _STACKS and text not in ("", _REMOVED):
                return Scrubbed(_REMOVED, Counter(names=1))
            if key in _FRAMES or not _PROSE.search(text[:_LONGEST_OP]):
                return self._scrub(text)
        if key in _SYMBOLS and _is_op(text):
            return self._scrub(text, prose=False)
        return self._worded("text", "texts", text, is_word=key in _WORDED, is_id=key in _IDENTIFIED)

    def credential(self, _: str, text: str) -> Scrubbed:
        """A text that stands where a credential does."""
        if _SMALL.fullmatch(text) or text == _CREDENTIAL:
            return Scrubbed(text, Counter())
        return Scrubbed(_CREDENTIAL, Counter(credentials=1))

    def environment(self, key: str, text: str) -> Scrubbed:
        """A text of an environment: its hash, and nothing of a credential."""
        if is_telling(key):
            return self.credential(key, text)
        if not text or _REPLACED.fullmatch(text) or text == _CREDENTIAL:
            return Scrubbed(text, Counter())
        found = self._scrub(text)
        return Scrubbed(f"text:{digest(found.text)}", found.kinds or Counter(texts=1))

    def key(self, text: str) -> Scrubbed:
        """A key itself."""
        if text in _SPACED or _REPLACED.fullmatch(text):
            return Scrubbed(text, Counter())
        found = _without_unmarked(self._scrub(text))
        if _KEY.fullmatch(found.text) or _FIXED.fullmatch(found.text):
            return found
        return Scrubbed(f"key:{digest(found.text)}", found.kinds or Counter(texts=1))

    def fact(self, key: str, text: str) -> Scrubbed:
        """A text of the recorder's block."""
        if is_telling(key):
            return self.credential(key, text)
        return self._scrub(text) if key in _FACTS else self._worded("text", "texts", text)

    def process(self, text: str) -> Scrubbed:
        """A process' name or command line: the program alone."""
        if _FIXED.fullmatch(text) or _LABELS.fullmatch(text) or _REPLACED.fullmatch(text):
            return Scrubbed(text, Counter())
        first = text.split(None, 1)[0] if text.strip() else ""
        program = _PROGRAM.fullmatch(first[-_LONGEST_OP:])
        kept = _without_unmarked(self._scrub(program[1])) if program and not self._strict else None
        if kept is None or not _PROGRAM.fullmatch(kept.text):
            return Scrubbed(f"process:{digest(text)}", Counter(names=1))
        after = kept.text if text == first else f"{kept.text} [arguments]"
        return Scrubbed(after, kept.kinds if after == text or kept.kinds else Counter(names=1))

    def thread(self, text: str) -> Scrubbed:
        """A thread's or a stream's name."""
        numbered = _THREAD.fullmatch(text)
        found = self._worded("thread", "names", numbered[2] if numbered else text)
        return Scrubbed(f"{numbered[1]}{found.text})", found.kinds) if numbered else found

    def labels(self, text: str) -> Scrubbed:
        """What Kineto calls a row of devices."""
        return Scrubbed(text, Counter()) if _LABELS.fullmatch(text) else self._worded("text", "texts", text)

    def _annotated(self, text: str) -> Scrubbed:
        said = self._scrub(text)
        after = annotation(text, said.text)
        found = self._scrub(after)
        if found.kinds:  # in what may stay otherwise
            return Scrubbed(f"annotation:{digest(said.text)}", found.kinds)
        return Scrubbed(after, Counter() if after == text else said.kinds or Counter(annotations=1))

    def _function(self, text: str) -> Scrubbed:
        found = self._scrub(text)
        form = _PACKAGED if self._strict else _FRAME
        if form.fullmatch(found.text) or _REPLACED.fullmatch(found.text):
            return found
        return Scrubbed(f"python:{digest(found.text)}", found.kinds or Counter(names=1))

    def _input(self, text: str) -> Scrubbed:
        found = self._scrub(text)
        if _INPUT.fullmatch(found.text) or _REPLACED.fullmatch(found.text) or _FIXED.fullmatch(found.text):
            return found
        return Scrubbed(f"input:{digest(found.text)}", found.kinds or Counter(inputs=1))

    def _worded(self, prefix: str, kind: str, text: str, is_word: bool = False, is_id: bool = False) -> Scrubbed:
        """Numbers, a single word, or a hash: of what is left without shapes, as an address can be guessed."""
        found = self._scrub(text)
        if is_id and _ID.fullmatch(found.text):
            return found
        found = _without_unmarked(found)
        if any(form.fullmatch(found.text) for form in (_NUMBERS, _FIXED, _REPLACED)):
            return found
        if (is_word or not self._strict) and _WORD.fullmatch(found.text):
            return found
        return Scrubbed(f"{prefix}:{digest(found.text)}", found.kinds or Counter({kind: 1}))


def is_telling(text: str) -> bool:
    """Whether a key, or the text before another one, says that a credential follows."""
    return len(text) <= _LONGEST_TELLING and _CREDENTIAL not in text and bool(_TELLING.search(text))


def is_environment(key: str) -> bool:
    """Whether a key says that an environment stands under it."""
    return bool(_ENVIRONMENT.fullmatch(key))


def _without_unmarked(found: Scrubbed) -> Scrubbed:
    """A text without long runs of letters and digits, which are keys to something."""
    text, number = _UNMARKED.subn(_CREDENTIAL, found.text)
    return Scrubbed(text, found.kinds + Counter(credentials=number)) if number else found


def _is_op(text: str) -> bool:
    """Whether a name reads like a symbol: nothing but a declaration is left of it without what stands in brackets."""
    if len(text) > _LONGEST_OP or is_listed(text) or not any(char.isspace() for char in text):
        return len(text) <= _LONGEST_OP and text.isascii()
    inner = text
    while (outer := _GROUPED.sub("", inner)) != inner:
        inner = outer
    return text.isascii() and bool(_DECLARED.fullmatch(_UNCLOSED.sub("", inner)))
