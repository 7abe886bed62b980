"""The steps close up, for the document: names decoded once, times from the start of the view, in nanosecond steps."""

from __future__ import annotations

import pandas as pd

from traceanalyzer.analysis.closeup import Closeup, Row, closeups
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.report import document as doc
from traceanalyzer.report.values import capped
from traceanalyzer.trace.tables import MISSING, Trace


def sections(analysis: Analysis) -> list[doc.CloseUp]:
    """The close-ups of the main device: at most one of a prefill and one of a decode step."""
    line = analysis.main.timeline
    found = closeups(line, analysis.main.ledger.idle)
    return [_section(line.trace, line.start_ns, one) for one in found]


def _section(trace: Trace, origin_ns: int, found: Closeup) -> doc.CloseUp:
    names = [
        code for code in dict.fromkeys(code for row in found.rows for code in row.items["name"]) if code != MISSING
    ]
    place = {code: index for index, code in enumerate(names)}
    return doc.CloseUp(
        phase=found.phase,
        step=found.step,
        from_us=(found.start_ns - origin_ns) / 1e3,
        device_from_us=(found.device_ns - found.start_ns) / 1e3,
        duration_us=(found.end_ns - found.start_ns) / 1e3,
        names=[capped(trace.text(code)) for code in names],
        rows=[_row(row, found.start_ns, place) for row in found.rows],
        rows_left_out=found.rows_left_out,
        gaps=doc.CloseUpGaps(
            start_us=_us(found.gaps["start_ns"] - found.start_ns),
            duration_us=_us(found.gaps["duration_ns"]),
            cause=found.gaps["cause"].tolist(),
        ),
    )


def _row(row: Row, start_ns: int, place: dict[int, int]) -> doc.CloseUpRow:
    items = row.items
    return doc.CloseUpRow(
        kind=row.kind,
        number=row.number,
        start_us=_us(items["start_ns"] - start_ns),
        duration_us=_us(items["duration_ns"]),
        name=[place.get(code) for code in items["name"].tolist()],
        category=[value if isinstance(value, str) else None for value in items["category"].tolist()],
        count=items["count"].tolist(),
    )


def _us(ns: pd.Series) -> list[float]:
    return [value / 1e3 for value in ns.tolist()]
