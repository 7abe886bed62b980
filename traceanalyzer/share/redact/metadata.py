"""Redacts what stands beside the events: known keys stay with their numbers, all others go unread.

Of the recorder's own block the sections of its schema stay, as `trace.collector` reads them; what was done is added as
one more section. What could be wrong: nobody reads a key that is dropped here, so nobody misses it either.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Raw

from traceanalyzer.share.redact.levels import KINDS, LEVELS, VERSION, Level, Redaction, Tally, digest
from traceanalyzer.share.redact.places import Places
from traceanalyzer.share.redact.written import joined
from traceanalyzer.trace.collector import read_block, section, word
from traceanalyzer.trace.metadata import host_hash, is_known
from traceanalyzer.trace.notes import DAMAGED_METADATA, NoteBook
from traceanalyzer.trace.salvage import DAMAGE, repair

BLOCK = "traceanalyzer"
REDACTION = "redaction"
_HOST = "host_name"
_FLAGS = frozenset(("with_flops", "with_modules", "profile_memory", "displayTimeUnit", "trace_id"))
_DISTRIBUTED = frozenset(("backend", "rank", "world_size", "pg_count", "pg_config", "nccl_version"))
_GROUP = frozenset(("pg_name", "pg_desc", "pg_size", "backend_config", "ranks", "uid"))
"""What PyTorch says of a group of processes."""
_SERIAL = "uuid"
_HASHED = re.compile(r"text:[0-9a-f]{12}")
_NULL = b"null"
_VERSION_KEY = re.compile(r"[a-z0-9_]{1,40}_version|schemaVersion", re.ASCII)
_VERSION_TEXT = re.compile(r"[0-9][0-9A-Za-z.+_-]{0,47}", re.ASCII)
_DEVICE_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,99}", re.ASCII)
_COMPILED = "kernel"
_NAMES = frozenset(("name", "architecture", "fingerprint"))
_OBJECT = msgspec.json.Decoder(dict[str, Raw])

Walk = Callable[[bytes, str], bytes]


def is_kept(key: str) -> bool:
    """Whether a top-level key stays."""
    return is_known(key) or key in _FLAGS


class MetadataRewriter:
    """Rewrites the top-level keys of one file.

    Args:
        places: the rules.
        level: how much is taken out.
        walk: how any other value is redacted under a key, see `EventRewriter.value`.
        tally: where changes are counted.
        book: where unreadable values are noted.
    """

    def __init__(self, places: Places, level: Level, walk: Walk, tally: Tally, book: NoteBook) -> None:
        """Nothing is known yet of the file's own block."""
        self._places = places
        self._level = level
        self._walk = walk
        self._tally = tally
        self._book = book

    def fields(self, values: Mapping[str, bytes], keys: Iterable[str], hidden: bool) -> list[tuple[str, bytes]]:
        """The keys that stay, with what stands under them.

        Args:
            values: raw JSON by key; the file's own block is left out.
            keys: all keys there were.
            hidden: the host's name is a hash already.
        """
        out = []
        for key, raw in values.items():
            if key != BLOCK and (value := self._readable(key, raw)) is not None:
                redacted = value if self._level == "none" else self._field(key, value, hidden)
                if redacted is None:
                    self._tally.counts["metadata"] += 1
                else:
                    out.append((key, redacted))
        if self._level != "none":
            self._tally.counts["metadata"] += len(set(keys) - values.keys() - {BLOCK, "traceEvents"})
        return out

    def _readable(self, key: str, raw: bytes) -> bytes | None:
        """A value as valid JSON; None, and noted, for one that a reader could not read either."""
        try:
            text = repair(raw.strip())[0]
            json.loads(text)
            _OBJECT.decode(b'{"": ' + text + b"}")
        except (ValueError, RecursionError, *DAMAGE):
            if is_known(key):
                self._book.add(DAMAGED_METADATA, detail=key)
            return None
        return text

    def _field(self, key: str, value: bytes, hidden: bool) -> bytes | None:
        text = json.loads(value) if value[:1] == b'"' else None
        if key == _HOST:
            return self._host(text, hidden) if text is not None else None
        if text is not None and _VERSION_KEY.fullmatch(key):
            return value if _VERSION_TEXT.fullmatch(text) else None
        if key == "distributedInfo" and value[:1] == b"{":
            inner = _OBJECT.decode(value)
            kept = [
                (name, self._groups(bytes(raw)) if name == "pg_config" else self._walk(bytes(raw), name))
                for name, raw in inner.items()
                if name in _DISTRIBUTED
            ]
            self._tally.counts["metadata"] += len(inner) - len(kept)
            return joined(kept)
        if key in ("deviceProperties", "computeProperties") and value[:1] == b"[":
            return b"[" + b", ".join(map(self._device, msgspec.json.decode(value, type=list[Raw]))) + b"]"
        return self._walk(value, key)

    def _host(self, name: str, hidden: bool) -> bytes:
        after = host_hash(name, hidden)
        if after != name:
            self._tally.counts["hosts"] += 1
            self._tally.show({"hosts": 1}, name, after)
        return msgspec.json.encode(after)

    def _groups(self, value: bytes) -> bytes:
        """The groups of processes, with the keys that PyTorch writes."""
        if value[:1] != b"[":
            return self._group(value)
        return b"[" + b", ".join(self._group(bytes(raw)) for raw in msgspec.json.decode(value, type=list[Raw])) + b"]"

    def _group(self, value: bytes) -> bytes:
        if value[:1] != b"{":
            return value if value[:1] not in b'"[' else _NULL
        inner = _OBJECT.decode(value)
        kept = [(name, self._walk(bytes(raw), name)) for name, raw in inner.items() if name in _GROUP]
        self._tally.counts["metadata"] += len(inner) - len(kept)
        return joined(kept)

    def _device(self, raw: Raw) -> bytes:
        """A device, whose name is no prose."""
        if bytes(raw)[:1] != b"{":
            return self._walk(bytes(raw), "")
        fields = []
        for key, field in _OBJECT.decode(raw).items():
            value = bytes(field)
            name = json.loads(value) if key == "name" and value[:1] == b'"' else None
            plain = (
                name is not None and _DEVICE_TEXT.fullmatch(name) and self._places.name(_COMPILED, name).text == name
            )
            if key.lower() == _SERIAL and value[:1] == b'"':
                value = self._serial(json.loads(value))
            fields.append((key, value if plain else self._walk(value, key)))
        return joined(fields)

    def _serial(self, text: str) -> bytes:
        """The number of one device of the world, as a hash."""
        after = text if not text or _HASHED.fullmatch(text) else f"text:{digest(text)}"
        if after != text:
            self._tally.counts["texts"] += 1
            self._tally.show({"texts": 1}, text, after)
        return msgspec.json.encode(after)

    def block(self, raw: bytes | None) -> tuple[list[tuple[str, bytes]], Mapping[str, object] | None]:
        """The sections of the file's own block that stay, and the block as it was read; nothing without one.

        What is said of an earlier redaction is left out of the sections.
        """
        text = self._readable(BLOCK, raw) if raw is not None else None
        if text is None:
            return [], None
        block, sound = read_block(json.loads(text))
        if not sound:
            self._book.add(DAMAGED_METADATA, detail=BLOCK)
        if block is None:
            return [], None
        raws = _OBJECT.decode(text)
        if self._level == "none":
            return [(name, bytes(raw)) for name, raw in raws.items() if name not in (REDACTION, "schema")], block
        return [
            (name, self._section(name, facts, _OBJECT.decode(raws[name])))
            for name, facts in block.items()
            if isinstance(facts, dict) and name != REDACTION
        ], block

    def _section(self, name: str, facts: Mapping[str, object], raws: Mapping[str, Raw]) -> bytes:
        self._tally.counts["metadata"] += len(raws) - len(facts)
        return joined((key, self._fact(name, key, facts[key], bytes(raws[key]))) for key in facts)

    def _fact(self, name: str, key: str, fact: object, raw: bytes) -> bytes:
        """A number as it stands; a text without what has a shape, or as a hash where it names the model."""
        if isinstance(fact, list):
            items = msgspec.json.decode(raw, type=list[Raw])
            return (
                b"[" + b", ".join(self._fact(name, key, fact[at], bytes(items[at])) for at in range(len(fact))) + b"]"
            )
        if not isinstance(fact, str) or self._level == "none":
            return raw
        found = self._places.fact(key, fact)
        after = found.text
        if self._level == "strict" and name == "model" and key in _NAMES and not after.startswith("model:"):
            after, found = f"model:{digest(after)}", found._replace(kinds=Counter(names=1))
        if after == fact:
            return raw
        self._tally.counts.update(found.kinds)
        self._tally.show(found.kinds, fact, after)
        return msgspec.json.encode(after)


def account(done: Redaction, block: Mapping[str, object] | None, book: NoteBook) -> bytes:
    """The section `redaction` of a file: what was done now and, as its block says, before."""
    earlier = section(block, REDACTION)
    before = {kind: count for kind in KINDS if isinstance(count := earlier.get(kind), int) and count > 0}
    level = max((done.level, _level(word(earlier, "level"))), key=LEVELS.index)
    counts = {kind: done.counts.get(kind, 0) + before.get(kind, 0) for kind in KINDS}
    told = earlier.get("noted")
    book.retell(told if isinstance(told, list) else ())
    noted = {"noted": book.told()} if book.told() else {}
    return msgspec.json.encode({"level": level, "version": VERSION, **{k: n for k, n in counts.items() if n}, **noted})


def _level(said: str | None) -> Level:
    return next((level for level in LEVELS if level == said), "none")
