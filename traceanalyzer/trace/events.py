"""The events of a Kineto trace as typed structs, one type per group of categories, and their lenient reading.

Times, shapes and the like stay raw JSON text: a double loses nanoseconds of an epoch time, and shapes nest in ways no
type describes. Keys of all schema ages are listed as fields of their own. What could be wrong: a producer spells a key
in a way not listed here, which reads as missing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct, field

from traceanalyzer.trace import notes
from traceanalyzer.trace.salvage import DAMAGE
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, MISSING

NOTHING = Raw(b"")
Loose = int | str | float | None
"""A number as producers write it: ROCm writes hex text, old Kineto "stream 7"."""


class Group(IntEnum):
    """Which struct, and so which table, a category of events belongs to."""

    SKIP = 0
    KERNEL = 1
    LAUNCH = 2
    OP = 3
    ANNOTATION = 4
    SYNC = 5
    MEMORY = 6
    OTHER = 7
    FRAME = 8


GPU_KINDS: dict[str | None, int] = {
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": MEMCPY, "Memcpy": MEMCPY, "gpu_memset": MEMSET, "Memset": MEMSET,
}  # fmt: skip
GPU_ANNOTATION = "gpu_user_annotation"
CATEGORIES: dict[str | None, Group] = {
    **dict.fromkeys(GPU_KINDS, Group.KERNEL),
    **dict.fromkeys(
        ("cuda_runtime", "cuda_driver", "Runtime", "Driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver"),
        Group.LAUNCH,
    ),
    **dict.fromkeys(("cpu_op", "Operator"), Group.OP),
    **dict.fromkeys(("user_annotation", GPU_ANNOTATION), Group.ANNOTATION),
    **dict.fromkeys(("cuda_sync", "xpu_sync"), Group.SYNC),
    "cpu_instant_event": Group.MEMORY,
    **dict.fromkeys(("python_function", "overhead"), Group.FRAME),
    **dict.fromkeys(
        ("ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu", "Trace",
         "external_correlation", "cuda_event", "cuda_profiler_range", "collective_comm"),
        Group.SKIP,
    ),
}  # fmt: skip
"""The categories PyTorch writes; any other is counted as unknown and read as `Group.OTHER`."""


class KernelArgs(Struct, frozen=True, gc=False):
    """What is kept of the arguments of a kernel, memcpy or memset."""

    device: Loose = MISSING
    stream: Loose = MISSING
    correlation: Loose = MISSING
    external_id: Loose = field(default=MISSING, name="External id")
    external_id_old: Loose = field(default=MISSING, name="external id")
    graph_id: Loose = field(default=MISSING, name="graph id")
    graph_node_id: Loose = field(default=MISSING, name="graph node id")
    grid: tuple[int, ...] = (MISSING, MISSING, MISSING)
    block: tuple[int, ...] = (MISSING, MISSING, MISSING)
    occupancy: Loose = field(default=None, name="est. achieved occupancy %")
    blocks_per_sm: Loose = field(default=None, name="blocks per SM")
    bytes: Loose = MISSING
    context: Loose = MISSING


class LaunchArgs(Struct, frozen=True, gc=False):
    """What is kept of the arguments of a runtime or driver call; ROCm's say which kernel they launch."""

    correlation: Loose = MISSING
    external_id: Loose = field(default=MISSING, name="External id")
    external_id_old: Loose = field(default=MISSING, name="external id")
    kernel: Raw = NOTHING
    grid: Raw = NOTHING
    block: Raw = NOTHING


class OpArgs(Struct, frozen=True, gc=False):
    """What is kept of the arguments of a cpu_op."""

    external_id: Loose = field(default=MISSING, name="External id")
    external_id_old: Loose = field(default=MISSING, name="external id")
    sequence: Loose = field(default=MISSING, name="Sequence number")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    dims_old: Raw = field(default=NOTHING, name="Input dims")
    types: Raw = field(default=NOTHING, name="Input type")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    strides: Raw = field(default=NOTHING, name="Input Strides")


class PlaceArgs(Struct, frozen=True, gc=False):
    """What is kept of the arguments of an annotation or a synchronisation."""

    device: Loose = MISSING
    stream: Loose = MISSING
    correlation: Loose = MISSING
    external_id: Loose = field(default=MISSING, name="External id")
    external_id_old: Loose = field(default=MISSING, name="external id")


class MemoryArgs(Struct, frozen=True, gc=False):
    """What is kept of the arguments of a memory event."""

    device: Loose = field(default=MISSING, name="Device Id")
    device_type: Loose = field(default=MISSING, name="Device Type")
    bytes: Loose = field(default=None, name="Bytes")
    allocated: Loose = field(default=None, name="Total Allocated")
    reserved: Loose = field(default=None, name="Total Reserved")


class Event(Struct, gc=False):
    """What every event has."""

    name: str = ""
    ph: str = "X"
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NOTHING
    dur: Raw = NOTHING


class KernelEvent(Event, gc=False):
    """A kernel, memcpy or memset."""

    args: KernelArgs = KernelArgs()


class LaunchEvent(Event, gc=False):
    """A runtime or driver call."""

    args: LaunchArgs = LaunchArgs()


class OpEvent(Event, gc=False):
    """A cpu_op."""

    args: OpArgs = OpArgs()


class PlaceEvent(Event, gc=False):
    """An annotation or a synchronisation."""

    args: PlaceArgs = PlaceArgs()


class MemoryEvent(Event, gc=False):
    """A memory event."""

    args: MemoryArgs = MemoryArgs()


class OtherEvent(Event, gc=False):
    """Any other event: names of threads, counters, instants."""

    args: Raw = NOTHING


class FrameEvent(Struct, gc=False):
    """A Python function's call. Nearly all are left out, so nothing of them is decoded here."""

    ph: Raw = NOTHING
    name: Raw = NOTHING
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING


class _Skipped(Struct, gc=False):
    """An event that is counted and not kept."""


STRUCTS: dict[Group, type[Struct]] = {
    Group.KERNEL: KernelEvent,
    Group.LAUNCH: LaunchEvent,
    Group.OP: OpEvent,
    Group.ANNOTATION: PlaceEvent,
    Group.SYNC: PlaceEvent,
    Group.MEMORY: MemoryEvent,
    Group.OTHER: OtherEvent,
    Group.FRAME: FrameEvent,
}
"""What the events of a group are decoded to."""

CATEGORY: dict[type[Struct], str] = {
    msgspec.defstruct(
        f"_{category}", [], bases=(STRUCTS.get(group, _Skipped),), tag_field="cat", tag=category, gc=False
    ): category
    for category, group in CATEGORIES.items()
    if category is not None
}
"""The category by the type that `decode_known` gives its events."""

_known = msgspec.json.Decoder(list[functools.reduce(operator.or_, CATEGORY)])  # type: ignore[misc]


def decode_known(piece: bytes) -> list[Struct]:
    """The events of a piece of an event list that holds nothing but events of known categories as they should be.

    Raises:
        DAMAGE: it holds anything else, which asks for a closer look.
    """
    events: list[Struct] = _known.decode(b"[" + piece + b"]")
    return events


S = TypeVar("S", bound=Struct)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


class EventDecoder:
    """Decodes the raw events of one group; a field of an unexpected type reads as missing and is noted.

    Args:
        kind: the struct of the group.
        book: where odd fields are counted.
    """

    def __init__(self, kind: type[S], book: notes.NoteBook) -> None:
        """Build the decoder of `kind`."""
        self._kind = kind
        self._book = book
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def decode(self, raws: Sequence[Raw | bytes]) -> list[Struct]:
        """One struct per raw event, in the same order."""
        try:
            return self._decoder.decode(b"[" + b",".join(raws) + b"]")
        except DAMAGE:
            return [self._one(raw) for raw in raws]

    def _one(self, raw: Raw | bytes) -> Struct:
        try:
            return msgspec.json.decode(raw, type=self._kind)
        except DAMAGE:
            event, odd = lenient(self._kind, raw)
            self._book.add(notes.ODD_FIELDS, odd)
            return event


def lenient(kind: type[S], raw: Raw | bytes) -> tuple[S, int]:
    """Decode an object field by field.

    Returns:
        The struct, with the default for every field whose value has another type, and the number of those.
    """
    try:
        values = _FIELDS.decode(raw)
    except DAMAGE:
        return kind(), 0 if bytes(raw) in (b"", b"null") else 1
    result: dict[str, object] = {}
    odd = 0
    for spec in msgspec.structs.fields(kind):
        text = values.get(spec.encode_name)
        if text is None:
            continue
        try:
            if spec.type is Raw:
                result[spec.name] = text
            elif isinstance(spec.type, type) and issubclass(spec.type, Struct):
                result[spec.name], more = lenient(spec.type, text)
                odd += more
            else:
                result[spec.name] = msgspec.json.decode(text, type=spec.type)
        except DAMAGE:
            odd += 1
    return kind(**result), odd
