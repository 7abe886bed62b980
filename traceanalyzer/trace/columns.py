"""Collects decoded events into columns block by block, so that no event outlives its block.

Text is interned on the way: names, threads, and the raw JSON of shapes in one spelling, whatever the file's layout.
What could be wrong: two threads with the same process and thread id (a recycled id) count as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from traceanalyzer.trace import frames, notes
from traceanalyzer.trace.events import (
    CATEGORIES,
    CATEGORY,
    GPU_ANNOTATION,
    GPU_KINDS,
    STRUCTS,
    Event,
    EventDecoder,
    FrameEvent,
    Group,
    Loose,
    MemoryArgs,
    OtherEvent,
    lenient,
)
from traceanalyzer.trace.growing import Chunk, Growing
from traceanalyzer.trace.numbers import Bools, Ints, integers, nanoseconds, narrow, reals, singles
from traceanalyzer.trace.salvage import DAMAGE, Events
from traceanalyzer.trace.tables import GPU_USER, MISSING, USER

TABLES = ("kernels", "launches", "ops", "annotations", "syncs", "counters", "frames")
_LABELLED = (Group.KERNEL, Group.ANNOTATION)
"""Groups whose categories make a difference within their table."""
_MEMORY = "[memory]"
_MEMORY_VALUES = (("Bytes", "bytes"), ("Total Allocated", "allocated"), ("Total Reserved", "reserved"))
_CPU_DEVICE_TYPE = 0
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Interner(dict[str, int]):
    """Text to code, in order of first appearance."""

    def __missing__(self, text: str) -> int:
        """The next free code."""
        code = self[text] = len(self)
        return code

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """One code per text."""
        return np.fromiter(map(self.__getitem__, texts), np.int32)


class _JsonTexts(dict[bytes, int]):
    """Raw JSON to the code of its text in one spelling, so that no layout matters."""

    def __init__(self, strings: Interner) -> None:
        super().__init__({b"": MISSING, b"null": MISSING})
        self._strings = strings

    def __missing__(self, raw: bytes) -> int:
        try:
            text = msgspec.json.format(raw, indent=0)
        except DAMAGE:
            text = raw
        code = self[raw] = self._strings[text.decode("utf-8", "replace")]
        return code

    def codes(self, raws: Iterable[Raw]) -> npt.NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, map(bytes, raws)), np.int32)


class _JsonNames(_JsonTexts):
    """Raw JSON strings to the code of what they say; what is no string is unknown."""

    def __missing__(self, raw: bytes) -> int:
        try:
            code = self._strings[msgspec.json.decode(raw, type=str)]
        except DAMAGE:
            code = MISSING
        self[raw] = code
        return code


class _Threads(dict[tuple[Loose, Loose], int]):
    """(pid, tid) as written to the thread's code; "24572" and 24572 are one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_by_code: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Loose, Loose]) -> int:
        code = self[key] = self.keys_by_code.setdefault(thread_key(*key), len(self.keys_by_code))
        return code


def thread_key(pid: Loose, tid: Loose) -> tuple[str, str]:
    """A process and thread id in one spelling."""
    return ("" if pid is None else str(pid).strip(), "" if tid is None else str(tid).strip())


class Columns:
    """All columns of a trace while it is read.

    `tables` holds the columns of each table; `categories` counts the events per category as written.
    """

    def __init__(self, book: notes.NoteBook) -> None:
        """Start empty; `book` is where odd events are counted."""
        self.strings = Interner()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.categories: Counter[str | None] = Counter()
        self.events = 0
        self.tables = {name: Growing() for name in TABLES}
        self._book = book
        self._threads = _Threads()
        self._json = _JsonTexts(self.strings)
        self._names = _JsonNames(self.strings)
        self._decoders = {group: EventDecoder(kind, book) for group, kind in STRUCTS.items()}

    @property
    def threads(self) -> tuple[tuple[str, str], ...]:
        """Process and thread id of every thread code."""
        return tuple(self._threads.keys_by_code)

    def add(self, events: Events) -> None:
        """Take over the events of one block."""
        self.events += len(events.structs) + len(events.raws)
        if events.structs:
            self._add_structs(events.structs)
        if events.raws:
            self._add_raws(events.raws, events.categories)

    def _add_structs(self, structs: Sequence[Any]) -> None:
        kinds = Counter(map(type, structs))
        self.categories.update({CATEGORY[kind]: count for kind, count in kinds.items()})
        group_of = {kind: CATEGORIES[CATEGORY[kind]] for kind in kinds}
        found: dict[Group, list[Any]] = {group: [] for group in group_of.values() if group != Group.SKIP}
        take = {kind: found[group].append for kind, group in group_of.items() if group != Group.SKIP}
        for event in structs:
            if (kind := type(event)) in take:
                take[kind](event)
        for group, events in found.items():
            self._group(group, events, [CATEGORY[type(event)] for event in events] if group in _LABELLED else [])

    def _add_raws(self, raws: Sequence[Raw], categories: Sequence[str | None]) -> None:
        self.categories.update(categories)
        group_of = {category: CATEGORIES.get(category, Group.OTHER) for category in set(categories)}
        found: dict[Group, list[Raw]] = {group: [] for group in group_of.values() if group != Group.SKIP}
        take = {category: found[group].append for category, group in group_of.items() if group != Group.SKIP}
        for raw, category in zip(raws, categories, strict=True):
            if category in take:
                take[category](raw)
        for group, texts in found.items():
            labelled = group in _LABELLED
            labels = [category for category in categories if group_of[category] == group] if labelled else []
            self._group(group, self._decoders[group].decode(texts), labels)

    def _group(self, group: Group, events: list[Any], labels: Sequence[str | None]) -> None:
        """Take over the events of one group, with their categories where the group tells them apart."""
        if group == Group.OTHER:
            self._other(events)
        elif group == Group.FRAME:
            self._frames(frames.long_ones(events))
        elif group == Group.MEMORY:
            instants = [event for event in events if event.ph in "iI"]
            self._memory(instants, [event.args for event in instants])
        else:
            if {event.ph for event in events} != {"X"}:
                keep = [event.ph == "X" for event in events]
                labels = [label for label, kept in zip(labels, keep, strict=False) if kept]
                self._count_pairs(events)
                events = [event for event, kept in zip(events, keep, strict=True) if kept]
            if events:
                {
                    Group.KERNEL: self._kernels,
                    Group.LAUNCH: self._launches,
                    Group.OP: self._ops,
                    Group.ANNOTATION: self._annotations,
                    Group.SYNC: self._syncs,
                }[group](events, labels)

    def _count_pairs(self, events: Iterable[Event]) -> None:
        self._book.add(notes.BEGIN_END_EVENTS, sum(event.ph in ("B", "E") for event in events))

    def _timed(self, events: Sequence[Any], chunk: Chunk) -> Chunk:
        """Name, start and duration; `known` says whose times could be read."""
        start, start_known = nanoseconds([event.ts for event in events])
        duration, duration_known = nanoseconds([event.dur for event in events])
        return {
            "name": self.strings.codes([event.name for event in events]),
            "start_ns": start,
            "duration_ns": duration,
            "known": start_known & duration_known,
            **chunk,
        }

    def _thread_codes(self, events: Sequence[Any]) -> npt.NDArray[np.int32]:
        return np.fromiter(map(self._threads.__getitem__, [(event.pid, event.tid) for event in events]), np.int32)

    def _device_codes(self, values: Ints) -> npt.NDArray[np.int32]:
        """Devices; MISSING, and noted, for ids that no device has."""
        possible = (values >= MISSING) & (values < 2**31)
        self._book.add(notes.ODD_FIELDS, int((~possible).sum()))
        return np.where(possible, values, MISSING).astype(np.int32)

    def _kernels(self, events: list[Any], labels: Sequence[str | None]) -> None:
        args = [event.args for event in events]
        grid, block = _triples([a.grid for a in args]), _triples([a.block for a in args])
        chunk: Chunk = {
            "kind": np.array([GPU_KINDS[label] for label in labels], np.int8),
            "device": self._device_codes(_or_place([a.device for a in args], [event.pid for event in events])),
            "stream": _or_place([a.stream for a in args], [event.tid for event in events]),
            "correlation": integers([a.correlation for a in args]),
            "external_id": _external_ids(args),
            "graph_id": integers([a.graph_id for a in args]),
            "graph_node_id": integers([a.graph_node_id for a in args]),
            **{f"grid_{axis}": grid[:, i] for i, axis in enumerate("xyz")},
            **{f"block_{axis}": block[:, i] for i, axis in enumerate("xyz")},
            "occupancy": singles([a.occupancy for a in args]),
            "blocks_per_sm": singles([a.blocks_per_sm for a in args]),
            "bytes": integers([a.bytes for a in args]),
            "context": integers([a.context for a in args]),
        }
        self.tables["kernels"].append(self._timed(events, chunk))

    def _launches(self, events: list[Any], _: Sequence[str | None]) -> None:
        args = [event.args for event in events]
        chunk: Chunk = {
            "thread": self._thread_codes(events),
            "correlation": integers([a.correlation for a in args]),
            "external_id": _external_ids(args),
            "launched": self._codes_of([a.kernel for a in args], self._names),
            "grid": self._codes_of([a.grid for a in args], self._json),
            "block": self._codes_of([a.block for a in args], self._json),
        }
        self.tables["launches"].append(self._timed(events, chunk))

    def _codes_of(self, raws: list[Raw], texts: _JsonTexts) -> npt.NDArray[np.int32]:
        """The codes of what few traces record."""
        return texts.codes(raws) if any(map(len, raws)) else np.full(len(raws), MISSING, np.int32)

    def _ops(self, events: list[Any], _: Sequence[str | None]) -> None:
        args = [event.args for event in events]
        dims = self._json.codes([a.dims for a in args])
        if (dims == MISSING).any():
            dims = np.where(dims == MISSING, self._json.codes([a.dims_old for a in args]), dims)
        chunk: Chunk = {
            "thread": self._thread_codes(events),
            "external_id": _external_ids(args),
            "dims": dims,
            "types": self._json.codes([a.types for a in args]),
            "concrete": self._json.codes([a.concrete for a in args]),
            "strides": self._json.codes([a.strides for a in args]),
            "sequence": integers([a.sequence for a in args]),
        }
        self.tables["ops"].append(self._timed(events, chunk))

    def _annotations(self, events: list[Any], labels: Sequence[str | None]) -> None:
        args = [event.args for event in events]
        gpu = np.array([label == GPU_ANNOTATION for label in labels], np.bool_)
        device = _or_place([a.device for a in args], [event.pid for event in events])
        stream = _or_place([a.stream for a in args], [event.tid for event in events])
        chunk: Chunk = {
            "kind": np.where(gpu, GPU_USER, USER).astype(np.int8),
            "thread": np.where(gpu, MISSING, self._thread_codes(events)).astype(np.int32),
            "device": self._device_codes(np.where(gpu, device, MISSING)),
            "stream": np.where(gpu, stream, MISSING),
            "external_id": _external_ids(args),
        }
        self.tables["annotations"].append(self._timed(events, chunk))

    def _syncs(self, events: list[Any], _: Sequence[str | None]) -> None:
        args = [event.args for event in events]
        chunk: Chunk = {
            "device": narrow(_or_place([a.device for a in args], [event.pid for event in events])),
            "stream": integers([a.stream for a in args]),
            "correlation": integers([a.correlation for a in args]),
        }
        self.tables["syncs"].append(self._timed(events, chunk))

    def _frames(self, events: list[FrameEvent]) -> None:
        room = frames.MOST - self.tables["frames"].rows
        self._book.add(notes.FRAMES_LEFT_OUT, max(len(events) - room, 0))
        events = events[: max(room, 0)]
        if not events:
            return
        start, start_known = nanoseconds([event.ts for event in events])
        duration, _ = nanoseconds([event.dur for event in events])
        places = [(frames.loose(event.pid), frames.loose(event.tid)) for event in events]
        self.tables["frames"].append({
            "name": self.strings.codes([frames.name(event) for event in events]),
            "thread": np.fromiter(map(self._threads.__getitem__, places), np.int32),
            "start_ns": start,
            "duration_ns": duration,
            "known": start_known,
        })  # fmt: skip

    def _memory(self, events: list[Any], args: list[MemoryArgs]) -> None:
        """Allocator events: what was asked for, and the totals where recorded, each as a counter of its own."""
        on_cpu = integers([a.device_type for a in args]) == _CPU_DEVICE_TYPE
        device = narrow(np.where(on_cpu, MISSING, integers([a.device for a in args])))
        start, known = nanoseconds([event.ts for event in events])
        for label, column in _MEMORY_VALUES:
            value = reals([getattr(a, column) for a in args])
            keep = ~np.isnan(value)
            if keep.any():
                name = np.full(len(events), self.strings[f"{_MEMORY} {label}"], np.int32)
                chunk: Chunk = {"name": name, "start_ns": start, "device": device, "value": value, "known": known}
                self.tables["counters"].append({column: values[keep] for column, values in chunk.items()})

    def _other(self, events: list[Any]) -> None:
        """Thread names, counters and allocator events without a category; the rest is not kept."""
        self._count_pairs(events)
        memory = [event for event in events if event.name == _MEMORY and event.ph in "iI"]
        if memory:
            self._memory(memory, [lenient(MemoryArgs, event.args)[0] for event in memory])
        for event in events:
            if event.ph == "M" and event.name == "thread_name":
                name = _object(event.args).get("name")
                if isinstance(name, str):
                    self.thread_names[thread_key(event.pid, event.tid)] = name
        samples = [
            (event, f"{event.name} {key}", value)
            for event in events
            if event.ph == "C"
            for key, value in _object(event.args).items()
        ]
        if samples:
            self._samples(samples)

    def _samples(self, samples: list[tuple[OtherEvent, str, object]]) -> None:
        """Samples of counters, one for each series of each event; what is no number is left out."""
        value = reals([sample for _, _, sample in samples])
        start, known = nanoseconds([event.ts for event, _, _ in samples])
        keep = ~np.isnan(value)
        chunk: Chunk = {
            "name": self.strings.codes([name for _, name, _ in samples]),
            "start_ns": start,
            "device": narrow(integers([event.pid for event, _, _ in samples])),
            "value": value,
            "known": known,
        }
        self.tables["counters"].append({column: values[keep] for column, values in chunk.items()})


def _external_ids(args: Sequence[Any]) -> Ints:
    new = integers([a.external_id for a in args])
    if (new == MISSING).any():
        return np.where(new == MISSING, integers([a.external_id_old for a in args]), new)
    return new


def _or_place(recorded: list[Loose], place: list[Loose]) -> Ints:
    """The recorded device or stream, else the process or thread that Kineto draws it as."""
    values = integers(recorded)
    missing: Bools = values == MISSING
    return np.where(missing, integers(place), values) if missing.any() else values


def _triples(values: list[tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """Grids or blocks as an n x 3 array, MISSING where not recorded as three numbers."""
    if set(map(len, values)) - {3}:
        values = [value if len(value) == 3 else (MISSING,) * 3 for value in values]
    return narrow(integers(list(chain.from_iterable(values))).reshape(-1, 3))


def _object(raw: Raw) -> dict[str, Any]:
    try:
        return _OBJECT.decode(raw)
    except DAMAGE:
        return {}
