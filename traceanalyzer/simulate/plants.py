"""Causes of idle time that are put into a run, each with a cost and a place, so that their traces can be looked for.

    launch          every n-th launch call takes so much longer
    graph_launch    every n-th call that replays a graph does
    sync            in every n-th pass the host reads a number from the card (aten::item), and goes on so much after it
    allocator       in every n-th pass the allocator gives memory back (which waits for the card) and takes new
    scheduler       after every n-th pass the host works so much longer before the next one
    input           whenever no request is left the engine waits for the next one
    rank            in every n-th pass the last rank comes so much later to the first collective: its kernel before that
                    one takes longer, and the others wait

Passes are the target's; those of a draft model belong to the one before. `sync` and `allocator` stand in the middle of
a forward pass, and before the sampling where one graph replays all of it.
What could be wrong: real causes come irregularly and together; a host that is ahead of the card hides what it does,
here as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceanalyzer.errors import InputError
from traceanalyzer.simulate.program import Copy, HostCall, Launch, Op, Pass, Scalar, Tensor
from traceanalyzer.simulate.scenario import KINDS, Plant, Scenario

_MOST_NS = 10**12
_MOST_EVERY = 1 << 20
_MOST_PLANTS = 64
_ITEM_NS = 1_400  # PCIe's latency; the number itself takes no time
FREE, MALLOC = "cudaFree", "cudaMalloc"


def check(scenario: Scenario) -> None:
    """Refuse what cannot be planted.

    Raises:
        InputError: a kind is unknown, a number out of range, or the scenario has no place for it.
    """
    if len(scenario.plants) > _MOST_PLANTS:
        raise InputError(f"more than {_MOST_PLANTS} causes are planted")
    for plant in scenario.plants:
        if plant.kind not in KINDS:
            known = ", ".join(KINDS).replace("_", "-")
            raise InputError(f"unknown cause {str(plant.kind)[:40]!r}", f"choose from {known}")
        if not 0 <= plant.ns <= _MOST_NS or not 1 <= plant.every <= _MOST_EVERY:
            raise InputError(f"{plant.kind} is planted with {plant.ns} ns every {plant.every}", "both have bounds")
        if plant.kind == "rank" and scenario.ranks == 1:
            raise InputError("one rank waits for no other", "use --ranks 2")
        if plant.kind == "graph_launch" and scenario.mode == "eager":
            raise InputError("without graphs none is launched", "use --mode graph")


def planted(scenario: Scenario, rank: int, passes: Sequence[Pass], number: int, *, last: bool) -> Iterator[Pass]:
    """A pass of the target, number `number`, and its drafts, with what is planted in their program.

    What comes between passes follows the drafts; after the `last` passes no request is left for now.
    """
    first, end = 0, len(passes) - 1
    found = [*passes]
    for plant in scenario.plants:
        if not (last if plant.kind == "input" else (number + 1) % plant.every == 0):
            continue
        if plant.kind == "sync":
            place, found[first] = first, _inserted(found[first], _item(plant.ns))
        elif plant.kind == "allocator":
            place, found[first] = first, _inserted(found[first], _reallocation(plant.ns))
        elif plant.kind == "scheduler":
            place, found[end] = end, replace(found[end], scheduler_ns=found[end].scheduler_ns + plant.ns)
        elif plant.kind == "input":
            place, found[end] = end, replace(found[end], input_ns=found[end].input_ns + plant.ns)
        elif plant.kind == "rank" and rank == scenario.ranks - 1:
            place, found[first] = first, replace(found[first], late_ns=found[first].late_ns + plant.ns)
        else:
            continue
        found[place] = replace(found[place], planted=(*found[place].planted, plant))
    yield from found


def _inserted(work: Pass, op: Op) -> Pass:
    """The pass with one more op in the middle of what its host does."""
    if work.graph:
        middle = len(work.after) // 2
        return replace(work, after=(*work.after[:middle], op, *work.after[middle:]))
    middle = len(work.ops) // 2
    return replace(work, ops=(*work.ops[:middle], op, *work.ops[middle:]))


def _item(ns: int) -> Op:
    """A number read from the card: a blocking copy."""
    number = Tensor((), "bool")
    copy = Launch(Copy("DtoH", 1, _ITEM_NS, blocking=True, late_ns=ns))
    inner = Op("aten::_local_scalar_dense", (number,), (copy,), 1_000)
    return Op("aten::item", (number,), (inner,), 500, "StoppingCriteria_0")


def _reallocation(ns: int) -> Op:
    """Memory that is given back and taken anew: half of the time each."""
    sizes = (Scalar("[1048576]", "ScalarList"), Scalar("15"), Scalar(""), Scalar(""), Scalar(""), Scalar(""))
    calls = (HostCall(FREE, ns // 2, drains=True), HostCall(MALLOC, ns - ns // 2))
    return Op("aten::empty", sizes, calls, 1_000)


class Slow:
    """What is planted in the calls of one rank, counted as they come."""

    def __init__(self, plants: Sequence[Plant] = ()) -> None:
        """Nothing was called yet."""
        self._calls = {kind: [one for one in plants if one.kind == kind] for kind in ("launch", "graph_launch")}
        self._counts = dict.fromkeys(self._calls, 0)

    def call(self, kind: str, found: list[Plant]) -> int:
        """By how much the next launch call is longer; what was planted goes to `found`."""
        if not self._calls[kind]:
            return 0
        self._counts[kind] += 1
        due = [one for one in self._calls[kind] if self._counts[kind] % one.every == 0]
        found += due
        return sum(one.ns for one in due)
