"""Which requests a pass serves, and with how many tokens each.

Whole prompts are read as soon as their requests have arrived, all waiting ones in one pass, before decoding goes on; in
chunks they are read first come first served, at most `chunk` prompt tokens a pass, with one token of every decoding
request riding along. The pass that reads a prompt's last token yields the first output token, so that a request of n
output tokens takes n - 1 decode passes. `together=False` serves one request a pass, in turn.
"""

from __future__ import annotations

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


def batches(scenario: Scenario) -> Iterator[tuple[Slice, ...]]:
    """The slices of every pass, in order."""
    waiting = [_Request(index, 0, scenario.output) for index in range(scenario.batch)]
    if scenario.skip_prefill:
        for request in waiting:
            request.read, request.left = scenario.prompt, scenario.output - 1
    running: list[_Request] = []
    number = 0
    while waiting or running:
        arrived = [r for r in waiting if number >= r.index * scenario.arrivals_every]
        waiting = [r for r in waiting if r not in arrived]
        running += arrived
        running = [r for r in running if r.left]
        if running:
            slices = tuple(_pass(scenario, running))
            for one in slices:
                _advance(scenario, running, one)
            yield slices
        number += 1


def _pass(scenario: Scenario, running: list[_Request]) -> Iterator[Slice]:
    """The slices of one pass."""
    reading = [r for r in running if r.read < scenario.prompt]
    decoding = [r for r in running if r.read == scenario.prompt]
    if not scenario.together:
        # In turn: whoever was served longest ago stands first (see `_advance`).
        one = reading[0] if reading else decoding[0]
        tokens = min(scenario.prompt - one.read, scenario.chunk or scenario.prompt) if reading else 1
        yield _slice(scenario, one, tokens)
        return
    budget = scenario.chunk or scenario.batch * scenario.prompt
    if not reading or scenario.chunk:
        for request in decoding:
            yield _slice(scenario, request, 1)
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


def _advance(scenario: Scenario, running: list[_Request], one: Slice) -> None:
    """Note what a pass has done; a request that was served alone goes to the end of the line."""
    request = next(r for r in running if r.index == one.request)
    if request.read < scenario.prompt:
        request.read += one.queries
        if request.read < scenario.prompt:
            return
    request.left -= 1
    if not scenario.together:
        running.remove(request)
        running.append(request)
