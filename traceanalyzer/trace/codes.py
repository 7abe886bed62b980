"""Renumbers interned codes in the order of what they stand for.

While reading, codes are given in order of first appearance, which depends on where blocks were cut and so on the file's
layout. After this the same events give the same codes. What could be wrong: a column of codes is left out of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from traceanalyzer.trace.tables import MISSING

Codes = npt.NDArray[np.int32]
ThreadKey = tuple[str, str]

TEXT_COLUMNS = ("name", "dims", "types", "concrete", "strides", "launched", "grid", "block")
"""Columns of codes of texts, in any table."""


def renumber(
    tables: Mapping[str, dict[str, npt.NDArray[Any]]], strings: Iterable[str], threads: Iterable[ThreadKey]
) -> tuple[tuple[str, ...], tuple[ThreadKey, ...]]:
    """Sort texts by their characters and threads by their ids, and rewrite every column of codes in place.

    Args:
        tables: columns by table; codes are indices into the two lists, MISSING for none.
        strings, threads: what the codes stand for, in order of the codes.

    Returns:
        The same two lists, in order of the new codes.
    """
    texts, keys = list(strings), list(threads)
    by_text = sorted(range(len(texts)), key=texts.__getitem__)
    by_thread = sorted(range(len(keys)), key=lambda code: tuple(_number_first(part) for part in keys[code]))
    text_codes, thread_codes = _new_codes(by_text), _new_codes(by_thread)
    for table in tables.values():
        for column in table:
            if column in TEXT_COLUMNS:
                table[column] = text_codes[table[column]]
            elif column == "thread":
                table[column] = thread_codes[table[column]]
    return tuple(texts[code] for code in by_text), tuple(keys[code] for code in by_thread)


def _new_codes(order: list[int]) -> Codes:
    """New code by old code; the last entry, which index MISSING reaches, stays MISSING."""
    codes = np.full(len(order) + 1, MISSING, np.int32)
    codes[order] = np.arange(len(order), dtype=np.int32)
    return codes


def _number_first(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isascii() and part.isdecimal() and len(part) < 30 else (1, 0, part)
