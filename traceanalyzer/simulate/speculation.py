"""Speculative decoding: a small model guesses tokens, the target checks all of them in one pass.

After every pass of the target the draft model runs k times. Its first run takes the same tokens as the target's pass
(a whole prompt, or what was just checked); each further run takes the one token per sequence that the run before
guessed. The target's next pass takes the newest token and the k guesses of every sequence, and gets logits for all of
them. The draft model is another model of the catalogue, or so many layers of the target itself with its output layer
(as EAGLE's heads); it keeps a cache of its own. How many guesses are right is the scenario's: always the same number.
What could be wrong: real acceptance varies by token, and trees of guesses are checked as well as chains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceanalyzer.catalog import models
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.attention import Slice
from traceanalyzer.simulate.scenario import Scenario

MOST_GUESSES = 16


def draft_model(scenario: Scenario) -> ModelConfig:
    """The model that guesses.

    Raises:
        InputError: the catalogue does not hold it, or the target has not so many layers.
    """
    if not isinstance(scenario.draft, int):
        return models.find(scenario.draft)
    target = models.find(scenario.model)
    if isinstance(scenario.draft, bool) or not 1 <= scenario.draft < target.layers:
        raise InputError(f"a draft of {str(scenario.draft)[:20]} layers", f"{target.id} has {target.layers}")
    return replace(target, layers=scenario.draft)


def check(scenario: Scenario) -> None:
    """Refuse what cannot be guessed or checked.

    Raises:
        InputError: a number is out of range, or the scenario's other choices do not go with it.
    """
    guesses, right = scenario.speculate, scenario.accepted
    if isinstance(guesses, bool) or not isinstance(guesses, int) or not 0 <= guesses <= MOST_GUESSES:
        raise InputError(f"speculate is {str(guesses)[:40]}, and must be a whole number from 0 to {MOST_GUESSES}")
    if not guesses:
        if right is not None:
            raise InputError("nothing is guessed, so nothing can be accepted", "use --speculate")
        return
    if right is not None and (isinstance(right, bool) or not isinstance(right, int) or not 0 <= right <= guesses):
        raise InputError(f"accepted is {str(right)[:40]}, and must be a whole number from 0 to {guesses}")
    if scenario.attention == "math" or scenario.kv_cache == "cat" or scenario.chunk is not None:
        raise InputError(
            "speculative decoding goes with flash attention, a static cache and whole prompts",
            "leave out math, cat and chunks",
        )
    if any(model.mla is not None for model in (models.find(scenario.model), draft_model(scenario))):
        raise InputError("speculative decoding with latent attention cannot be simulated", "choose another model")


def drafts(scenario: Scenario, checked: Sequence[Slice]) -> Iterator[tuple[Slice, ...]]:
    """The slices of the draft model's runs after a pass of the target over these sequences."""
    yield tuple(checked)
    for run in range(1, scenario.speculate):
        yield tuple(Slice(one.request, 1, _known(scenario, one) + run) for one in checked)


def _known(scenario: Scenario, one: Slice) -> int:
    """How many keys of a sequence hold, after the pass that it was part of."""
    if one.keys <= scenario.prompt:
        return one.keys
    return one.keys - scenario.speculate + scenario.right
