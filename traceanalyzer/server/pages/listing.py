"""The list of traces, with its filters. Filters are form fields in the address, so a filtered list can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from fastapi import Response

from traceanalyzer.server.pages.lines import BOUNDS, STATES, trace_line
from traceanalyzer.server.pages.sending import example
from traceanalyzer.server.pages.visit import Visit
from traceanalyzer.server.pages.words import text
from traceanalyzer.server.traces import Page, Search, TraceRow

_SUGGESTED = ("model", "engine", "environment", "gpu")
_TEXTS = ("text", *_SUGGESTED)
_RECORDING = "recording"
"""Asked for by a trace's page; the form shows it only then."""
_HOUR_MS = 3_600_000
_SINCE = {"hour": _HOUR_MS, "day": 24 * _HOUR_MS, "week": 7 * 24 * _HOUR_MS, "month": 30 * 24 * _HOUR_MS}


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of a choice."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Field:
    """One filter: a text, with values that are in the list now as suggestions, or a choice."""

    name: str
    label: str
    value: str
    kind: str = "text"
    choices: tuple[Choice, ...] = ()
    suggestions: tuple[str, ...] = ()


def traces(visit: Visit) -> Response:
    """The newest traces that are as asked for."""
    limits = visit.services.settings.limits
    given = {name: visit.asked(name)[: limits.label_chars] for name in (*_TEXTS, _RECORDING, "bound", "state", "since")}
    asked = {name: value for name, value in given.items() if value}
    after = visit.asked("after") or None
    found = visit.services.traces.find(_search(asked, visit.now), after, limits.page_size)
    return visit.page(
        "list.html",
        text("list.title"),
        filters=[_suggesting(field, found.rows) for field in _fields(given)],
        label_chars=limits.label_chars,
        filtered=bool(asked),
        lines=[trace_line(row, visit.now) for row in found.rows],
        counted=_counted(found),
        next=_address({**asked, "after": found.next}) if found.next else "",
        first=_address(asked) if after else "",
        example=example(visit),
    )


def path_of_recording(recording: str) -> str:
    """The address of the list of a recording's traces."""
    return _address({_RECORDING: recording})


def _search(asked: dict[str, str], now: int) -> Search:
    since = _SINCE.get(asked.get("since", ""))
    return Search(
        text=asked.get("text"),
        model=asked.get("model"),
        engine=asked.get("engine"),
        environment=asked.get("environment"),
        gpu=asked.get("gpu"),
        bound=asked.get("bound"),
        state=asked.get("state"),
        recording=asked.get(_RECORDING),
        since_ms=None if since is None else now - since,
    )


def _fields(given: dict[str, str]) -> list[Field]:
    any_one = Choice("", text("filter.any"))
    bounds = (any_one, *(Choice(bound, label) for bound, label in BOUNDS.items()))
    states = (any_one, *(Choice(state, text(f"state.{state}")) for state in STATES))
    times = (Choice("", text("filter.any_time")), *(Choice(since, text(f"filter.{since}")) for since in _SINCE))
    return [
        *(Field(name, text(f"filter.{name}"), given[name], "search" if name == "text" else "text") for name in _TEXTS),
        *([Field(_RECORDING, text("about.recording"), given[_RECORDING])] if given[_RECORDING] else []),
        Field("bound", text("filter.bound"), given["bound"], choices=bounds),
        Field("state", text("filter.state"), given["state"], choices=states),
        Field("since", text("filter.since"), given["since"], choices=times),
    ]


def _suggesting(field: Field, rows: Sequence[TraceRow]) -> Field:
    if field.name not in _SUGGESTED:
        return field
    values = {str(value) for row in rows if (value := getattr(row, field.name))}
    return replace(field, suggestions=tuple(sorted(values)))


def _counted(found: Page[TraceRow]) -> str:
    if found.total is None:
        return text("list.caption")
    return text("list.counted_one") if found.total == 1 else text("list.counted", count=f"{found.total:,}")


def _address(query: dict[str, str]) -> str:
    return f"/?{urlencode(query)}" if query else "/"
