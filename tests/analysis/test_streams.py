"""How many streams take turns, told from the contexts of their steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from traceanalyzer.analysis.forecast import streams


def steps(contexts: list[float], sequences: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"context_sum": contexts, "sequences": sequences, "tokens": sequences})


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        ([10, 11, 12, 13, 14], 1),
        ([10, 10, 10, 11, 11, 11, 12, 12, 12], 3),  # equal prompts, in turns
        ([10, 500, 11, 501, 12, 502], 2),
        ([10, 11, 12, 13, 50, 51, 52, 53], 1),  # one after the other
        ([10, 20, 30, 40], None),  # no step goes on with another one
        ([10, np.nan, 12, 13], None),
        ([10, 11], None),
    ],
)
def test_streams_that_take_turns(contexts: list[float], expected: int | None) -> None:
    assert streams(steps(contexts)) == expected


def test_groups_of_sequences_grow_by_as_many_tokens() -> None:
    assert streams(steps([20, 40, 22, 42, 24, 44], sequences=2)) == 2


def test_steps_that_check_guesses_or_change_their_batch_tell_nothing() -> None:
    assert streams(steps([10, 11, 12, 13]).assign(tokens=4.0)) is None
    assert streams(steps([10, 11, 12, 13]).assign(sequences=[1.0, 1.0, 2.0, 2.0], tokens=[1.0, 1.0, 2.0, 2.0])) is None
