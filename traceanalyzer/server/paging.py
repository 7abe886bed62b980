"""Pages of rows that have a number, the newest first: what jobs and the audit log have in common.

What could be wrong: rows are in the order in which they were numbered, whatever their own times say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute

from traceanalyzer.errors import InputError
from traceanalyzer.server.database.engine import Database
from traceanalyzer.server.traces import Page

_LARGEST_PAGE = 500
_DIGITS = 18

Row = TypeVar("Row")


def newest(
    database: Database,
    table: type[Row],
    number: InstrumentedAttribute[int],
    wanted: Iterable[ColumnElement[bool]],
    page: str | None,
    size: int,
) -> Page[Row]:
    """One page of a table, newest first.

    Args:
        database: where the rows are.
        table: which.
        number: its column that is counted up.
        wanted: what must hold for a row.
        page: the `next` of the page before; None: the first page.
        size: the most rows of the page.

    Raises:
        InputError: `page` is none of ours.
    """
    query = select(table).where(*wanted)
    size = max(1, min(size, _LARGEST_PAGE))
    if page is not None:
        if not (page.isascii() and page.isdigit() and len(page) <= _DIGITS):
            raise InputError("no such page", "start at the first page again")
        query = query.where(number < int(page))
    with database.reading() as session:
        rows = session.scalars(query.order_by(number.desc()).limit(size + 1)).all()
    more = len(rows) > size
    return Page(rows[:size], str(getattr(rows[size - 1], number.key)) if more else None, None)
