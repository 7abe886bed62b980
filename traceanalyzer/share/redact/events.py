"""Rewrites events: every text by the rule of its place, every number byte by byte as it was.

Most events are of a few forms, and their texts repeat. So a block is cut into units (a text with its key, a category
with its name), and each distinct unit is looked at once. Where one needs to be seen in its event (a process' name, an
unusual order of keys), that event is taken apart. What could be wrong: an object that spells a key twice keeps the
last, as readers of JSON do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Raw

from traceanalyzer.share.redact.levels import Tally
from traceanalyzer.share.redact.places import (
    ANNOTATIONS,
    COMPILED,
    FLOWS,
    INPUTS,
    OPS,
    PYTHON,
    Places,
    is_environment,
    is_telling,
)
from traceanalyzer.share.redact.shapes import Scrubbed
from traceanalyzer.share.redact.written import joined
from traceanalyzer.trace.salvage import DAMAGE, Events

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LISTED = rf"\[\s*+{_STRING}(?:\s*+,\s*+{_STRING})*+\s*+\]"
_UNIT = re.compile(
    (
        rf'((?:"ph"\s*+:\s*+"X"\s*+,\s*+)?+"cat"\s*+:\s*+{_STRING}\s*+,\s*+"name"\s*+:\s*+{_STRING}'
        rf"|{_STRING}(?:\s*+:(?:\s*+(?:{_STRING}|{_LISTED}))?+)?+)"
    ).encode(),
    re.DOTALL,
)
"""A unit: an event's beginning as Kineto writes it, or a text, with what stands under it where that is text too."""
_BEGIN = re.compile(
    rf'("ph"\s*+:\s*+"X"\s*+,\s*+)?+"cat"\s*+:\s*+({_STRING})\s*+,\s*+"name"\s*+:\s*+({_STRING})'.encode(), re.DOTALL
)
_HARMLESS = frozenset(
    text % colon for colon in (b":", b": ") for text in (b'"name"%s"[memory]"', b'"cat"%s"cpu_instant_event"')
)
_ONE = re.compile(_STRING.encode(), re.DOTALL)
_KEYED = re.compile(rf"({_STRING})(\s*+:)(.*)".encode(), re.DOTALL)
_USUAL = COMPILED | ANNOTATIONS | OPS | {PYTHON}
_IN_CONTEXT = frozenset(("cat", "name", INPUTS))
"""Keys of which more must be known than the text under them."""
_METADATA = {"process_name": "process", "thread_name": "thread", "process_labels": "labels"}
"""The rule for what Kineto calls things, by the name of the event that says it."""
_METADATA_NAMES = frozenset((*_METADATA, "process_sort_index", "thread_sort_index"))
_ARROW = frozenset(("s", "t", "f"))
"""Letters of arrows."""
_ARGUMENT, _ENVIRONMENT, _CREDENTIAL = "argument", "environment", "credential"
_KEYED_PLACES = ("name", _ARGUMENT, _ENVIRONMENT, _CREDENTIAL)
_NAMING = frozenset(("name", "key", "k", "variable", "header"))
_VALUED = frozenset(("value", "val", "v", "content"))
"""Keys of an object that names a thing and what it is."""
_MOST_UNITS = 200_000
_MOST_BYTES = 1 << 25
_MOST_TEXTS = 20_000
_DEEPEST = 24
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_TEXT = msgspec.json.Decoder(str)
_NULL = b"null"

Rule = Callable[[str], Scrubbed]


class EventRewriter:
    """Rewrites the events of one file.

    Args:
        places: the rules.
        tally: where changes are counted.
    """

    def __init__(self, places: Places, tally: Tally) -> None:
        """Nothing is known yet."""
        self._places = places
        self._tally = tally
        self._units = _Units(self._unit)
        self._texts: dict[tuple[str, str | None, bytes], tuple[bytes, Counter[str]]] = {}
        self._keys: dict[str, Scrubbed] = {}

    def rewrite(self, events: Events) -> bytes:
        """The events of a block, separated by commas."""
        self._trim()
        text = b",\n".join(events.raws)
        parts = _UNIT.split(text)
        found = list(map(self._units.__getitem__, parts[1::2]))
        if None not in found:
            self._count(parts[1::2])
            parts[1::2] = found
            return b"".join(parts)
        return b",\n".join(map(self._event, events.raws, events.categories))

    def value(self, raw: Raw | bytes, key: str) -> bytes:
        """Any value under a key of an unknown object, as `Places.argument` has it."""
        return self._walk(raw, key, 0)

    def _trim(self) -> None:
        """Forget what was looked at where that has become much: memory stays bounded, whatever the texts are."""
        if self._units.is_much:
            self._units.clear()
        if len(self._texts) > _MOST_TEXTS:
            self._texts.clear()
        if len(self._keys) > _MOST_TEXTS:
            self._keys.clear()

    def _count(self, units: Sequence[bytes]) -> None:
        changed = self._units.changed
        if changed:
            for unit in filter(changed.__contains__, units):
                self._tally.counts.update(changed[unit])

    def _event(self, raw: Raw, category: str | None) -> bytes:
        parts = _UNIT.split(raw)
        found = list(map(self._units.__getitem__, parts[1::2]))
        if None in found:
            return self._apart(raw, category)
        self._count(parts[1::2])
        parts[1::2] = found
        return b"".join(parts)

    def _unit(self, unit: bytes) -> tuple[bytes | None, Counter[str]]:
        """What takes a unit's place, and why; None where its event must be seen as a whole."""
        kinds: Counter[str] = Counter()

        def replaced(match: re.Match[bytes], rule: Rule) -> bytes:
            after, why = self._ruled(match.group(), rule)
            kinds.update(why)
            return after

        if (begin := _BEGIN.fullmatch(unit)) is not None:
            category, name = _plain(begin[2]), begin[3]
            if category not in _USUAL or not (begin[1] or _plain(name) in FLOWS):
                return None, kinds
            after, kinds = self._ruled(name, lambda text: self._places.name(category, text))
            return unit[: -len(name)] + after, kinds
        if unit in _HARMLESS:
            return unit, kinds
        keyed = _KEYED.fullmatch(unit)
        if keyed is None:
            if is_telling(_plain(unit)):  # what follows it in its list is told by it
                return None, kinds
            return _ONE.sub(lambda match: replaced(match, lambda text: self._places.argument("", text)), unit), kinds
        key = _plain(keyed[1])
        if (key in _IN_CONTEXT and not (key == INPUTS and keyed[3])) or self._places.key(key).text != key:
            return None, kinds
        if _is_told(key, _ONE.findall(keyed[3])):
            return None, kinds
        if key == "ph" and keyed[3].strip() == b'"M"':
            return None, kinds
        after = _ONE.sub(lambda match: replaced(match, lambda text: self._places.argument(key, text)), keyed[3])
        return keyed[1] + keyed[2] + after, kinds

    def _ruled(self, literal: bytes, rule: Rule) -> tuple[bytes, Counter[str]]:
        text = _plain(literal)
        found = rule(text)
        if found.text == text:
            return literal, found.kinds
        self._tally.show(found.kinds, text, found.text)
        return msgspec.json.encode(found.text), found.kinds

    def _literal(self, literal: bytes, place: str, key: str | None) -> bytes:
        """One text of an event that is taken apart, in its place, and counted."""
        asked = (place, key, literal)
        known = self._texts.get(asked)
        if known is None:
            rule: Callable[..., Scrubbed] = getattr(self._places, place)
            whole = (lambda text: rule(key, text)) if place in _KEYED_PLACES else rule
            known = self._texts[asked] = self._ruled(literal, whole)
        self._tally.counts.update(known[1])
        return known[0]

    def _apart(self, raw: Raw, category: str | None) -> bytes:
        """One event, field by field."""
        try:
            fields = _OBJECT.decode(raw)
        except DAMAGE:  # no object
            return self._walk(raw, "", 0)
        name = _text(fields.get("name"))
        is_metadata = _text(fields.get("ph")) == "M"
        is_arrow = _text(fields.get("ph")) in _ARROW
        out: list[tuple[str, bytes]] = []
        for key, field in fields.items():
            value = bytes(field)
            begin = value[:1]
            if key == "name" and begin == b'"' and not is_metadata:
                out.append((key, self._literal(value, *(("arrow", None) if is_arrow else ("name", category)))))
            elif key == "args" and is_metadata and begin == b"{":
                out.append((key, self._metadata(value, name)))
            elif key == "args":
                out.append((key, self._walk(value, "", 0)))
            elif key == "name" and name in _METADATA_NAMES:
                out.append((key, value))
            else:
                out.append((self._key(key), self._walk(value, key if key != "name" else "", 0)))
        return joined(out)

    def _metadata(self, raw: bytes, name: str | None) -> bytes:
        """What Kineto calls processes and threads."""
        place = _METADATA.get(name or "")
        if place is None:
            return self._walk(raw, "", 0)
        return joined(
            (self._key(key), self._literal(value, place, None) if value[:1] == b'"' else self._walk(value, key, 0))
            for key, value in ((key, bytes(field)) for key, field in _OBJECT.decode(raw).items())
        )

    def _walk(self, raw: Raw | bytes, key: str, depth: int, place: str = _ARGUMENT) -> bytes:
        """Any value: texts by the rule of the key they stand under, or of one above it, all else as it is."""
        raw = bytes(raw)
        begin = raw[:1]
        if place == _ARGUMENT:
            place = _ENVIRONMENT if is_environment(key) else _CREDENTIAL if is_telling(key) else _ARGUMENT
        if begin == b'"':
            return self._literal(raw, place, key)
        if begin not in (b"{", b"["):
            return raw
        if depth == _DEEPEST:
            self._tally.counts["texts"] += 1
            return _NULL
        if begin == b"[":
            return b"[" + b", ".join(self._items(_LIST.decode(raw), key, depth + 1, place)) + b"]"
        inner = _OBJECT.decode(raw)
        told = any(name.lower() in _NAMING and is_telling(_text(value) or "") for name, value in inner.items())
        return joined(
            (
                self._key(name),
                self._walk(value, name, depth + 1, _CREDENTIAL if told and name.lower() in _VALUED else place),
            )
            for name, value in inner.items()
        )

    def _items(self, items: Sequence[Raw], key: str, depth: int, place: str) -> Iterator[bytes]:
        """What stands in a list: what follows the name of a credential is one."""
        told = False
        for item in items:
            yield self._walk(item, key, depth, _CREDENTIAL if told else place)
            told = is_telling(_text(item) or "")

    def _key(self, key: str) -> str:
        """A key in its place, and counted."""
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = self._places.key(key)
            if known.text != key:
                self._tally.show(known.kinds, key, known.text)
        self._tally.counts.update(known.kinds)
        return known.text


class _Units(dict[bytes, "bytes | None"]):
    """What takes the place of each distinct unit. `changed` holds the reasons of those that change."""

    def __init__(self, look: Callable[[bytes], tuple[bytes | None, Counter[str]]]) -> None:
        super().__init__()
        self.changed: dict[bytes, Counter[str]] = {}
        self._look = look
        self._bytes = 0

    def __missing__(self, unit: bytes) -> bytes | None:
        after, kinds = self._look(unit)
        self._bytes += 2 * len(unit)
        self[unit] = after
        if after is not None and kinds:
            self.changed[unit] = kinds
        return after

    @property
    def is_much(self) -> bool:
        """Whether it is time to forget everything."""
        return len(self) > _MOST_UNITS or self._bytes > _MOST_BYTES

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.changed.clear()
        self._bytes = 0


def _is_told(key: str, literals: Sequence[bytes]) -> bool:
    """Whether texts under a key are to be seen in their event: it, a key beside it or one of them may tell of them."""
    if is_environment(key) or (key.lower() in _VALUED and literals):
        return True
    return (not literals and is_telling(key)) or any(is_telling(_plain(literal)) for literal in literals[:-1])


def _plain(literal: bytes) -> str:
    return _TEXT.decode(literal)


def _text(raw: Raw | None) -> str | None:
    """The text of a field; None where it is none."""
    value = b"" if raw is None else bytes(raw)
    return _plain(value) if value[:1] == b'"' else None
