"""Makes the recorder's block of one finished file: what is known about the window beyond the trace itself.

Every section holds plain values under short names, and what is not known is left out. What comes from the recorded
process (its model) passes only under the schema's names. What could be wrong: the bytes of cache in use are those of
the step log's last step, times what one token takes; prefixes that sequences share count once per sequence.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Mapping, Sequence

from .facts import RawWindow, Window
from .finish import host_hash
from .scan import Scan

SCHEMA = 1
COMPLETE = ("steps", "time")
"""How a window ends that was not cut short."""
MODEL = (
    "name", "architecture", "fingerprint", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab",
    "experts", "experts_per_token", "parameters", "weight_bytes", "dtype", "kv_dtype", "quantization",
    "tied_embeddings", "attention", "kv_bytes_per_token", "kv_reserved_bytes", "kv_used_bytes",
)  # fmt: skip
_GPU = ("name", "count", "memory_bytes", "driver")
_PROCESS = (
    "pid", "ppid", "python", "forked", "torch", "cuda", "device", "rank", "local_rank", "world_size", "hooks",
    "failures_total",
)  # fmt: skip
_ENGINES = ("vllm", "sglang", "transformers")
"""A process that holds several runs the first of these."""
_MOST_RANKS = 1 << 31
_LATEST_NS = 2**62
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_MOST_KEYS = 64
_MOST_ITEMS = 64
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class About:
    """What the supervisor knows of the process that a raw window came from, at the window's time.

    Args:
        process: its hello facts.
        steplog, overhead, gpu, service: those sections of the block, as their owners state them.
        context_sum: lengths of all sequences in flight, in tokens, as of the last step; None unknown.
    """

    process: Mapping[str, Any] = field(default_factory=dict)
    steplog: Mapping[str, Any] = field(default_factory=dict)
    overhead: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    service: Mapping[str, Any] = field(default_factory=dict)
    context_sum: int | None = None


@dataclass(frozen=True)
class Sampling:
    """How the recording goes: its mode, the timer's period, and windows kept and dropped up to now.

    duty_share: share of the time since the recording began that windows took, None unknown.
    """

    mode: str | None = None
    every_s: float | None = None
    windows_taken: int | None = None
    windows_dropped: int | None = None
    duty_share: float | None = None


def build(
    window: Window, raw: RawWindow, about: About, sampling: Sampling, scan: Scan, missing: Sequence[int | None]
) -> dict[str, Any]:
    """The block: `{"schema": 1, section: {name: plain value or list of them}}`, without empty sections.

    Args:
        window: the window over all ranks.
        raw: this process' share of it.
        about: what is known of the process.
        sampling: what is known of the recording.
        scan: what the raw trace holds.
        missing: the ranks that gave no file, None for a process without a rank.
    """
    sections = {
        "model": _model(about),
        "gpu": {**_named(about.process.get("gpu"), _GPU), **_known(about.gpu)},
        "window": _window(window, raw, about.process, scan, missing),
        "sampling": {
            "mode": sampling.mode, "trigger": window.reason, "every_s": sampling.every_s, "weight_s": window.weight_s,
            "windows_taken": sampling.windows_taken, "windows_dropped": sampling.windows_dropped,
            "duty_share": sampling.duty_share,
        },
        "overhead": {**about.overhead, "open_ms": raw.open_ms, "stop_ms": raw.stop_ms, "save_ms": raw.save_ms},
        "service": {**about.service, **window.service},
        "steplog": about.steplog,
    }  # fmt: skip
    block: dict[str, Any] = {"schema": SCHEMA}
    for name, section in sections.items():
        known = _known(section)
        if known:
            block[name] = known
    return block


def rank(process: Mapping[str, Any], scan: Scan | None = None) -> int | None:
    """A process' rank: as it reports it, else as torch.distributed wrote it into the trace."""
    return _place(process, scan, "rank")


def process_hash(pid: int) -> str:
    """Tells this host's processes apart from each other and from those of other hosts: twelve hexadecimal digits."""
    return host_hash(f"{host_hash(socket.gethostname())}-{pid}")


def cold_start(scan: Scan) -> bool | None:
    """Whether the window holds one step only, the process' first, and that is a prefill. None without step labels."""
    if not scan.steps or scan.first_number is None:
        return None
    return scan.phases == {"prefill": 1} and scan.first_number == 0 and not scan.unfinished


def opened_ns(raw: RawWindow, scan: Scan) -> int | None:
    """When the recording began, epoch ns: the recorder's word, else the trace's own span."""
    return _moment(raw.opened_ns, scan.opened_ns)


def closed_ns(raw: RawWindow, scan: Scan) -> int | None:
    """When the recording ended, epoch ns."""
    return _moment(raw.closed_ns, scan.closed_ns)


def _moment(*sources: int | None) -> int | None:
    """The first that is known and can be a time of this era."""
    return next((ns for ns in sources if ns is not None and 0 < ns < _LATEST_NS), None)


def process_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of a process: the known part of its hello facts."""
    kept = _known({key: facts.get(key) for key in _PROCESS})
    for key, names in (("gpu", _GPU), ("model", MODEL), ("draft_model", MODEL)):
        section = _named(facts.get(key), names)
        if section:
            kept[key] = section
    if isinstance(facts.get("engines"), dict):
        kept["engines"] = _known(facts["engines"])
    if isinstance(facts.get("failures"), list):
        kept["failures"] = [_known(one) for one in facts["failures"][:_MOST_ITEMS] if isinstance(one, dict)]
    return kept


def _model(about: About) -> dict[str, Any]:
    model = _named(about.process.get("model"), MODEL)
    each = model.get("kv_bytes_per_token")
    if "kv_used_bytes" not in model and about.context_sum and isinstance(each, (int, float)):
        model["kv_used_bytes"] = int(about.context_sum * each)
    return model


def _window(
    window: Window, raw: RawWindow, process: Mapping[str, Any], scan: Scan, missing: Sequence[int | None]
) -> dict[str, Any]:
    engines = process.get("engines")
    engines = engines if isinstance(engines, dict) else {}
    engine = next((name for name in _ENGINES if name in engines), None)
    return {
        "number": window.number, "recorder": raw.recorder, "reason": window.reason, "closed_by": raw.closed_by,
        "complete": raw.closed_by in COMPLETE and not scan.unfinished,
        "steps": scan.steps, "unfinished_steps": scan.unfinished, "requested_ns": window.requested_ns,
        "opened_ns": opened_ns(raw, scan), "closed_ns": closed_ns(raw, scan), "quiet_ns": raw.quiet_ns,
        "first_step_ns": scan.first_step_ns, "last_step_ns": scan.last_step_ns,
        "stable_batch": window.stable, "cold_start": cold_start(scan),
        "engine": engine, "engine_version": engines.get(engine), "torch": process.get("torch"),
        "rank": rank(process, scan), "world_size": _place(process, scan, "world_size"), "ranks_missing": list(missing),
        "pid_hash": process_hash(raw.pid),
    }  # fmt: skip


def _place(process: Mapping[str, Any], scan: Scan | None, key: str) -> int | None:
    distributed = scan.header.get("distributedInfo") if scan is not None else None
    for source in (process, distributed):
        value = source.get(key) if isinstance(source, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS:
            return value
    return None


def _named(facts: Any, names: Sequence[str]) -> dict[str, Any]:
    """What is known of a foreign dictionary, under the names of the schema."""
    return _known({name: facts.get(name) for name in names}) if isinstance(facts, dict) else {}


def _known(section: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a section that are known."""
    kept: dict[str, Any] = {}
    for key, value in section.items():
        if len(kept) == _MOST_KEYS or not isinstance(key, str) or not _KEY.match(key):
            continue
        if isinstance(value, (list, tuple)):
            items: list[Any] = [_plain(item) for item in value[:_MOST_ITEMS]]
            if items:
                kept[key] = items
        else:
            plain = _plain(value)
            if plain is not None:
                kept[key] = plain
    return kept


def _plain(value: Any) -> Any:
    """A value that JSON can hold and that is bounded; None for all else, and for a text that looks like a path."""
    if isinstance(value, str):
        return (
            None if value.startswith(("/", "~")) else value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
        )
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return None
