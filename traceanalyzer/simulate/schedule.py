"""Which requests a pass serves, and with how many tokens each.

Whole prompts are read as soon as their requests have arrived, all waiting ones in one pass, before decoding goes on; in
chunks they are read first come first served, at most `chunk` prompt tokens a pass, with one token of every decoding
request riding along. What the cache holds of a prompt is not read again. The pass that reads a prompt's last token
yields the first output token, so that a request of n output tokens takes n - 1 decode passes, or fewer where each
checks guesses too. With `together=False` groups of requests take turns, one group a pass: each goes on as if it were
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.scenario import Scenario


@dataclass
class _Request:
    """How far one request is."""

    index: int
    read: int  # prompt tokens that are in the cache
    left: int  # output tokens still to come


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass's slices; `going` are those of requests that go on.

    `last`: after it no request is left until the next one arrives.
    """

    slices: tuple[Slice, ...]
    going: tuple[Slice, ...]
    last: bool


def turns(scenario: Scenario) -> Iterator[Turn]:
    """The slices of every pass, in order."""
    size = scenario.batch if scenario.together else scenario.group_size
    requests = [_Request(index, scenario.prefix, scenario.output) for index in range(scenario.batch)]
    if scenario.skip_prefill:
        for request in requests:
            request.read, request.left = scenario.prompt, scenario.output - 1
    groups = deque(requests[first : first + size] for first in range(0, scenario.batch, size))
    number = 0
    while any(request.left for request in requests):
        for _ in range(len(groups)):
            group = groups[0]
            groups.rotate(-1)
            served = [r for r in group if r.left and number >= r.index * scenario.arrivals_every]
            if served:
                slices = tuple(_pass(scenario, served))
                for one in slices:
                    _advance(scenario, requests[one.request], one)
                arrived = (r for r in requests if number + 1 >= r.index * scenario.arrivals_every)
                going = tuple(one for one in slices if requests[one.request].left)
                yield Turn(slices, going, not any(r.left for r in arrived))
                break
        number += 1


def _pass(scenario: Scenario, served: list[_Request]) -> Iterator[Slice]:
    """The slices of one pass of these requests."""
    reading = [r for r in served if r.read < scenario.prompt]
    if not reading or scenario.chunk:
        for request in served:
            if request.read == scenario.prompt:
                yield _slice(scenario, request, 1 + scenario.speculate)
    budget = scenario.chunk or scenario.batch * scenario.prompt
    for request in reading:
        tokens = min(budget, scenario.prompt - request.read)
        budget -= tokens
        if tokens:
            yield _slice(scenario, request, tokens)


def _slice(scenario: Scenario, request: _Request, tokens: int) -> Slice:
    """These tokens of a request; in a decode pass the newest output token is read, whose key is new too."""
    written = scenario.output - request.left
    done = request.read if request.read < scenario.prompt else scenario.prompt + written - 1
    return Slice(request.index, tokens, done + tokens)


def _advance(scenario: Scenario, request: _Request, one: Slice) -> None:
    """Note what a pass has done."""
    if request.read < scenario.prompt:
        request.read += one.queries
        request.left -= request.read == scenario.prompt
        return
    request.left -= min(request.left, 1 + scenario.right)
