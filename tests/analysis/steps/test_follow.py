"""Sequences followed by their number: which steps mix, and which contexts may be counted up."""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.steps.follow import Sequence, follow
from traceanalyzer.analysis.steps.speculation import read
from traceanalyzer.trace.tables import MISSING


def steps(*rows: tuple[int, int], whole=True, attention=None) -> Sequence:
    """Steps of (tokens, sequences): as many of both decode. The first `whole` read whole prompts."""
    tokens, sequences = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    decodes = tokens == sequences
    spent = np.array(attention if attention is not None else tokens, np.int64)
    read_whole = np.full(len(rows), whole) if isinstance(whole, bool) else np.arange(len(rows)) < whole
    return Sequence(~decodes, decodes, tokens, sequences, ~decodes & read_whole, spent)


def contexts(found) -> list[float | None]:
    return [None if np.isnan(one) else one for one in found.context.tolist()]


def test_prompts_read_apart_add_to_those_that_decode():
    found = follow(steps((100, 1), (1, 1), (60, 1), (2, 2), (2, 2)))
    assert not found.mixed.any()
    assert contexts(found) == [100, 101, 60, 163, 165]


def test_a_sequence_that_ends_makes_the_rest_unknown_until_others_run_alone():
    found = follow(steps((300, 3), (3, 3), (2, 2), (2, 2), (80, 4), (4, 4)))
    assert contexts(found) == [300, 303, None, None, 80, 84]


def test_chunks_with_decoding_beside_them_are_mixed():
    found = follow(steps((128, 1), (128, 1), (129, 2), (129, 2), (130, 3), (130, 3), (3, 3), whole=1))
    assert found.mixed.tolist() == [False, False, True, True, True, True, False]
    assert found.decoding.tolist() == [MISSING, MISSING, 1, 1, 2, 2, MISSING]
    assert contexts(found) == [128, 256, 385, 514, 644, 774, 777]


def test_a_budget_that_counts_decoding_tokens_leaves_their_number_open():
    found = follow(steps((128, 1), (128, 1), (128, 2), (128, 2), (128, 3), (3, 3), whole=1))
    assert found.mixed.tolist() == [False, False, True, True, True, False]
    assert (found.decoding == MISSING).all()


def test_as_many_sequences_as_before_and_new_ones_are_no_mixing():
    found = follow(steps((64, 1), (1, 1), (130, 2), (3, 3), (65, 1), (4, 4)))
    assert not found.mixed.any()


def test_prompts_whose_beginning_may_be_cached_are_not_counted_from():
    found = follow(steps((100, 1), (1, 1), (1, 1), whole=False))
    assert contexts(found) == [None, None, None]


def test_chunks_are_told_by_how_their_attention_grows():
    grows = follow(steps((100, 1), (100, 1), (50, 1), (1, 1), whole=False, attention=(10, 30, 25, 2)))
    assert contexts(grows) == [100, 200, 250, 251]
    alike = follow(steps((100, 1), (100, 1), (50, 1), (1, 1), whole=False, attention=(10, 10, 5, 2)))
    assert contexts(alike) == [None] * 4


def test_decoding_from_before_the_window_has_no_context():
    assert contexts(follow(steps((4, 4), (4, 4), (4, 4)))) == [None] * 3


def speculated(layers: list[int], tokens: list[int], sequences: int, logits: int = MISSING):
    many = len(layers)
    return read(np.array(layers), np.array(tokens), np.full(many, sequences), np.full(many, logits))


def test_drafts_are_the_small_passes_after_every_large_one():
    found = speculated([24, 6, 6, 24, 6, 6, 24, 6, 6, 24, 6, 6], [64, 64, 2, 6, 6, 2, 6, 6, 2, 6, 6, 2], 2)
    assert found.draft.tolist() == [False, True, True] * 4
    assert found.checked[[3, 6, 9]].tolist() == [3, 3, 3]


def test_an_encoder_before_each_prompt_is_no_draft():
    found = speculated([6, 24, 24, 24, 6, 24, 24, 24], [64, 64, 2, 2, 64, 64, 2, 2], 2)
    assert not found.draft.any()


def test_checks_without_a_draft_model_need_a_row_of_the_same_length():
    assert speculated([24] * 4, [64, 8, 8, 8], 2).checked.tolist() == [MISSING, 4, 4, 4]
    assert (speculated([24] * 4, [64, 8, 6, 8], 2).checked == MISSING).all()


def test_short_prompts_get_logits_for_their_last_token_only():
    assert (speculated([24] * 4, [8] * 4, 2, logits=2).checked == MISSING).all()
