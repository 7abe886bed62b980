"""Which steps go on with which, and how many groups of sequences take turns, told from the contexts of the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from traceanalyzer.analysis.turns import Turns, successors, turns


def steps(contexts: Sequence[float], sequences: Sequence[float] | float = 1.0) -> pd.DataFrame:
    served = np.broadcast_to(sequences, len(contexts))
    return pd.DataFrame({"context_sum": contexts, "sequences": served, "tokens": served})


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        ([10, 11, 12, 13, 14], Turns(1, 1)),
        ([10, 10, 10, 11, 11, 11, 12, 12, 12], Turns(3, 3)),  # equal prompts, in turns
        ([10, 500, 11, 501, 12, 502], Turns(2, 2)),
        ([10, 11, 12, 13, 50, 51, 52, 53], Turns(1, 1)),  # one after the other
        ([10, 20, 30, 40], None),  # no step goes on with another one
        ([10, np.nan, 12, 13], None),
        ([10, 11], None),
    ],
)
def test_requests_that_take_turns(contexts: list[float], expected: Turns | None) -> None:
    assert turns(steps(contexts)) == expected


def test_groups_of_several_sequences_grow_by_as_many_tokens() -> None:
    assert turns(steps([20, 40, 22, 42, 24, 44], sequences=2)) == Turns(2, 4)
    assert turns(steps([20, 22, 24, 26], sequences=2)) == Turns(1, 2)


def test_groups_of_different_sizes_take_turns() -> None:
    # Eight requests of 100 tokens in groups of three, three and two, each decoding three tokens.
    contexts = [sequences * (101 + token) for token in range(3) for sequences in (3, 3, 2)]
    found = steps(contexts, [3, 3, 2] * 3)
    assert turns(found) == Turns(3, 8)
    assert successors(found).tolist() == [3, 4, 5, 6, 7, 8, -1, -1, -1]


def test_a_batch_that_grows_and_shrinks_takes_no_turns() -> None:
    # Two sequences of 50; one of 30 joins; then one of the first two ends.
    contexts = [102, 104, 106, 139, 142, 145, 94, 96]
    found = steps(contexts, [2, 2, 2, 3, 3, 3, 2, 2])
    assert turns(found) == Turns(1, 3)
    assert successors(found).tolist() == [1, 2, -1, 4, 5, -1, 7, -1]


def test_a_chain_that_is_passed_over_for_long_has_ended() -> None:
    # One request ends at 11; another one reads 100, 101, ..., and a third begins, by chance, at 12.
    other = [100.0 + n for n in range(9)]
    found = steps([10, 11, *other, 12, 13])
    assert turns(found) == Turns(1, 1)
    assert successors(found).tolist() == [1, -1, 3, 4, 5, 6, 7, 8, 9, 10, -1, 12, -1]
    assert successors(steps([10, 11, *other[:7], 12, 13]))[1] == 9, "seven steps of another group may still be a turn"


def test_steps_that_check_guesses_tell_nothing() -> None:
    guesses = steps([10, 11, 12, 13]).assign(tokens=4.0)
    assert turns(guesses) is None
    assert (successors(guesses) == -1).all()
