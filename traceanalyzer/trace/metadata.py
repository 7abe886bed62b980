"""Reads the known top-level facts of a trace; every other key is dropped unread, as they hold environments and tokens.

What could be wrong: a known key that occurs twice counts as written last, and a damaged header loses the keys after the
damage (noted).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from traceanalyzer.trace import notes
from traceanalyzer.trace.collector import hides_host, read_block, section
from traceanalyzer.trace.numbers import integer
from traceanalyzer.trace.salvage import repair
from traceanalyzer.trace.tables import MISSING, DeviceProperties, Metadata

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]', re.DOTALL)
_BLOCK = "traceanalyzer"
_KNOWN = frozenset((
    "schemaVersion", "deviceProperties", "computeProperties", "distributedInfo", "host_name", "record_shapes",
    "with_stack", "baseTimeNanoseconds", _BLOCK,
))  # fmt: skip
_VERSIONS: Mapping[str, str] = {
    "cupti_version": "cupti", "cuda_runtime_version": "cuda_runtime", "cuda_driver_version": "cuda_driver",
    "hip_runtime_version": "hip_runtime", "hip_driver_version": "hip_driver", "roctracer_version": "roctracer",
    "rocprofiler_version": "rocprofiler", "torch_version": "torch", "pytorch_version": "torch",
    "vllm_version": "vllm", "sglang_version": "sglang", "transformers_version": "transformers",
}  # fmt: skip
_VERSION_TEXT = re.compile(r"[0-9][0-9A-Za-z.+_-]{0,47}")
_HASH = re.compile(r"[0-9a-f]{12}")
_LONGEST_NAME = 200
_MOST_SMS = 4096
_MOST_MEMORY = 1 << 50
_MOST_VERSION = 99
_MOST_THREADS = 1024
_MOST_RANKS = (1 << 31) - 1
_EARLIEST_EPOCH_NS = 1_420_070_400 * 10**9
_LATEST_EPOCH_NS = 4_102_444_800 * 10**9


def is_known(key: str) -> bool:
    """Whether a top-level key is read."""
    return key in _KNOWN or key in _VERSIONS


def top_level(
    text: bytes, depth: int = 0, wanted: Callable[[str], bool] = is_known
) -> tuple[dict[str, bytes], set[str]]:
    """The raw values of the wanted top-level keys, and the names of all.

    Args:
        text: JSON text; it may end anywhere.
        depth: how many brackets are open where it begins.
        wanted: which keys to keep the values of.
    """
    values: dict[str, bytes] = {}
    keys: set[str] = set()
    key: str | None = None
    begin = -1
    last = ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in b"{[":
            depth += 1
        elif token in b"}],":
            depth -= token != b","
            if key is not None and depth <= 1 and (token == b"," or depth == 0) and begin >= 0:
                if wanted(key):
                    values[key] = text[begin : match.start()]
                key = None
        elif token == b":":
            if depth == 1 and key is None and last:
                key, begin = last, match.end()
                keys.add(key)
        elif depth == 1 and key is None:
            last = token[1:-1].decode("utf-8", "replace")
    return values, keys


def read_metadata(values: Mapping[str, bytes], first_ns: int | None, book: notes.NoteBook) -> Metadata:
    """The metadata of a trace.

    Args:
        values: raw JSON of the known top-level keys.
        first_ns: the earliest time of an event, in ns since the trace's own zero, or None without events.
        book: where unreadable values are counted.
    """
    facts: dict[str, Any] = {}
    for key, raw in values.items():
        try:
            facts[key] = json.loads(repair(raw)[0])
        except (ValueError, RecursionError):
            book.add(notes.DAMAGED_METADATA, detail=key)
    distributed = facts.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    base = max(0, integer(facts.get("baseTimeNanoseconds")))
    host = facts.get("host_name")
    collector = None
    if (block := facts.get(_BLOCK)) is not None:
        collector, sound = read_block(block)
        if not sound:
            book.add(notes.DAMAGED_METADATA, detail=_BLOCK)
    told = section(collector, "redaction").get("noted")
    book.retell(told if isinstance(told, list) else ())
    window = section(collector, "window")

    def place(key: str, least: int) -> int | None:
        """What torch.distributed says, else the recorder: a service's ranks may talk by other means."""
        value = distributed.get(key)
        return _bounded(window.get(key) if value is None else value, least, _MOST_RANKS, book, notes.ODD_FIELDS)

    return Metadata(
        base_time_ns=base,
        rank=place("rank", 0),
        world_size=place("world_size", 1),
        devices=_devices(facts.get("deviceProperties") or facts.get("computeProperties"), book),
        producer=_versions(facts) or None,
        host_hash=host_hash(host, hides_host(collector)) if isinstance(host, str) else None,
        recorded_at_ns=_recorded_at(base, first_ns),
        record_shapes=_flag(facts.get("record_shapes")),
        with_stack=_flag(facts.get("with_stack")),
        collector=collector,
    )


def host_hash(host: str, hidden: bool) -> str:
    """Tells hosts apart without naming them, as the collector does: twelve hexadecimal digits.

    Args:
        host: what the trace calls it.
        hidden: that may be its hash already. (A container's name is twelve such digits too, so the looks do not tell.)
    """
    if hidden and _HASH.fullmatch(host):
        return host
    return hashlib.sha256(host.encode("utf-8", "replace")).hexdigest()[:12]


def _bounded(value: object, least: int, most: int, book: notes.NoteBook, code: str, key: str = "") -> int | None:
    """A recorded integer; None, and `code` noted for `key`, where it is none or cannot be true."""
    if value is None:
        return None
    number = integer(value)
    if least <= number <= most and not isinstance(value, bool):
        return number
    book.add(code, detail=key)
    return None


def _flag(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _recorded_at(base: int, first_ns: int | None) -> int | None:
    """Times since boot have no date; times since the epoch, or since a base that is one, do."""
    if first_ns is None:
        return base if _EARLIEST_EPOCH_NS < base < _LATEST_EPOCH_NS else None
    moment = base + first_ns
    return moment if _EARLIEST_EPOCH_NS < moment < _LATEST_EPOCH_NS else None


def _versions(facts: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, name in _VERSIONS.items():
        value = facts.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        if _VERSION_TEXT.fullmatch(str(value)):
            found[name] = str(value)
    return found


def _devices(entries: object, book: notes.NoteBook) -> tuple[DeviceProperties, ...]:
    if not isinstance(entries, list):
        return ()
    return tuple(_device(entry, book) for entry in entries if isinstance(entry, dict))


def _device(entry: Mapping[str, Any], book: notes.NoteBook) -> DeviceProperties:
    """One device; old schemas spell capability and multiprocessors differently."""

    def number(least: int, most: int, *keys: str) -> int | None:
        key = next((key for key in keys if entry.get(key) is not None), keys[0])
        return _bounded(entry.get(key), least, most, book, notes.DAMAGED_METADATA, key)

    name = entry.get("name")
    identity = _bounded(entry.get("id"), 0, _MOST_RANKS, book, notes.ODD_FIELDS)
    return DeviceProperties(
        id=MISSING if identity is None else identity,
        name=name[:_LONGEST_NAME] if isinstance(name, str) else "",
        memory_bytes=number(1, _MOST_MEMORY, "totalGlobalMem"),
        compute_major=number(1, _MOST_VERSION, "computeMajor", "major"),
        compute_minor=number(0, _MOST_VERSION, "computeMinor", "minor"),
        num_sms=number(1, _MOST_SMS, "numSms", "multiProcessorCount"),
        warp_size=number(1, _MOST_THREADS, "warpSize"),
    )
