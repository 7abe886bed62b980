"""The sections of the Report document that hold one step of a phase close up.

Units are in the field names; times are from the step's own start (`CloseUp.from_us`). Lists of one row or of the gaps
have the same length and belong together.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from traceanalyzer.report.idle import Cause
from traceanalyzer.report.sections import PhaseName, Section

MOST_ROWS, MOST_ITEMS = 16, 1000
"""No page that is read back may draw more."""


class CloseUpRow(Section):
    """What one stream, or one host thread's outermost ops or runtime calls, ran, in order.

    `number` is the stream's, or counts host threads from 1. `name` points into `CloseUp.names`, null where `count`
    short items stand together. `category` is a kernel's, null on the host.
    """

    kind: Literal["op", "call", "stream"]
    number: int
    start_us: list[float] = Field(max_length=MOST_ITEMS)
    duration_us: list[float]
    name: list[int | None]
    category: list[str | None]
    count: list[int]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if len({len(each) for each in (self.start_us, self.duration_us, self.name, self.category, self.count)}) > 1:
            raise ValueError("lists of different lengths")
        return self


class CloseUpGaps(Section):
    """The longest gaps of the step, in order, and the cause that most of each goes to, as in `IdleCause`."""

    start_us: list[float] = Field(max_length=MOST_ITEMS)
    duration_us: list[float]
    cause: list[Cause]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if not len(self.start_us) == len(self.duration_us) == len(self.cause):
            raise ValueError("lists of different lengths")
        return self


class CloseUp(Section):
    """The median complete step of a phase: `from_us` on the span's clock; its own activity begins at `device_from_us`.

    `rows_left_out` are streams and threads beyond the busiest.
    """

    phase: PhaseName
    step: int
    from_us: float
    device_from_us: float
    duration_us: float
    names: list[str]
    rows: list[CloseUpRow] = Field(max_length=MOST_ROWS)
    rows_left_out: int
    gaps: CloseUpGaps

    @model_validator(mode="after")
    def _named(self) -> Self:
        places = {place for row in self.rows for place in row.name if place is not None}
        if not places <= set(range(len(self.names))):
            raise ValueError("a name that is not listed")
        return self
