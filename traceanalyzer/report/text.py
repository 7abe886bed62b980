"""The first screen for a terminal: the same lines in the same order as the page, in colour where there is any.

Names are printed as plain text, never as mark-up, and what a terminal would obey is written out (see `text_safety`).
What could be wrong: on a narrow terminal the phase table wraps.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traceanalyzer.report import strings
from traceanalyzer.report.document import Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.text_safety import shorten, visible
from traceanalyzer.report.views.pieces import Fact
from traceanalyzer.report.views.summary import FirstScreen, Meter, first_screen

_METER = 30
_LIMIT = 300
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim", "clean": "green"}
_NOTES = 5


def render(report: Report, width: int = 100) -> str:
    """The summary as plain text without colour, lines at most `width` wide."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, no_color=True,
                      legacy_windows=False, _environ={})  # fmt: skip
    with console.capture() as captured:
        show(report, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def show(report: Report, console: Console) -> None:
    """Print the summary to a console; colour, width and encoding are the console's."""
    first = first_screen(report)
    console.print(Group(*_blocks(first)), highlight=False)


def _blocks(first: FirstScreen) -> Iterable[RenderableType]:
    if first.simulated:
        yield _text(f"{first.simulated}. {text('simulated.meaning')}", "bold yellow")
    yield _text(first.title, "bold")
    yield _joined(first.ran)
    if first.lost:
        yield from (Text(), _text(text("lost.title"), "bold yellow"))
        yield from (Padding(_text(line, "yellow"), (0, 0, 0, 2)) for line in first.lost)
    yield Text()
    yield _text(first.headline, "bold cyan")
    if first.confidence or first.does_not_help:
        yield _text(". ".join(part for part in (first.confidence, first.does_not_help) if part))
    if first.straggler:
        yield _text(first.straggler, "bold")
    yield Text()
    yield from _quality(first)
    if first.service:
        yield from (Text(), _heading("service.title"), _facts(first.service))
    if first.speed:
        yield from (Text(), _heading("speed.title"), _side_by_side(first.speed))
    yield from (_indented(line) for line in (first.work_ratio, first.log) if line)
    if first.meters:
        yield from (Text(), _heading(first.meters_title), _meters(first.meters))
    if first.counters:
        yield Padding(Group(_heading("counters.title"), _joined(first.counters)), (0, 0, 0, 2))
    if first.phases:
        yield from (Text(), _phases(first))
    if first.floor:
        yield from (Text(), _heading("floor.title"), _indented(first.floor))
    if first.beyond:
        yield _indented(first.beyond)
    if first.ideal:
        yield from (Text(), _heading("floor.prefill_title"), _indented(first.ideal))
    if first.limits:
        yield _indented(first.limits)
    if first.actions:
        yield from (Text(), _heading("actions.title"))
        for number, action in enumerate(first.actions, start=1):
            yield _indented(f"{number}. {action.title}: {action.action}")
            yield Padding(_text(action.aside, "green"), (0, 0, 0, 5))
    elif first.nothing_to_do:
        yield from (Text(), _indented(first.nothing_to_do))
    if first.ruled_out:
        yield from (Text(), _heading("ruled_out.title"))
        yield from (_indented(item) for item in first.ruled_out)
    if first.cost:
        yield from (Text(), _heading("cost.title"), _facts(first.cost))


def _text(value: str, style: str = "") -> Text:
    return Text(shorten(visible(value), _LIMIT), style=style)


def _heading(key: str) -> Text:
    return Text(text(key), style="bold")


def _indented(value: str) -> Padding:
    return Padding(_text(value), (0, 0, 0, 2))


def _joined(facts: Iterable[Fact]) -> Text:
    separator = " \N{MIDDLE DOT} "
    return Text(separator, style="dim").join(_text(f"{fact.label} {fact.figure}") for fact in facts)


def _side_by_side(facts: Sequence[Fact]) -> Padding:
    grid = Table.grid(padding=(0, 3))
    grid.add_row(*(_text(fact.label, "dim") for fact in facts))
    grid.add_row(*(_text(str(fact.figure), "bold") for fact in facts))
    return Padding(grid, (0, 0, 0, 2))


def _facts(facts: Iterable[Fact]) -> Padding:
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        style = "bold red" if fact.figure.above_limit else ""
        grid.add_row(_text(fact.label, "dim"), _text(str(fact.figure), style))
    return Padding(grid, (0, 0, 0, 2))


def _quality(first: FirstScreen) -> Iterable[RenderableType]:
    yield _text(first.quality, _STYLES[first.quality_severity])
    serious = [note for note in first.quality_notes if note.severity != "info" and note.message not in first.lost]
    for note in serious[:_NOTES]:
        yield Padding(_text(note.message, _STYLES[note.severity]), (0, 0, 0, 2))
    if len(serious) > _NOTES:
        yield _indented(text("quality.more", count=len(serious) - _NOTES))
    if first.profiling:
        yield _text(first.profiling, "yellow")
    if first.redacted:
        yield _text(first.redacted, "dim")


def _meters(meters: Iterable[Meter]) -> Padding:
    grid = Table.grid(padding=(0, 2))
    for meter in meters:
        full = round(meter.low * _METER)
        maybe = round(meter.high * _METER) - full
        bar = "\N{FULL BLOCK}" * full + "\N{MEDIUM SHADE}" * maybe + "\N{LIGHT SHADE}" * (_METER - full - maybe)
        grid.add_row(_text(meter.label, "dim"), Text(bar, style="cyan"), _text(str(meter.figure), "bold"))
    return Padding(grid, (0, 0, 0, 2))


def _phases(first: FirstScreen) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(text("phases.phase"))
    table.add_column(text("phases.bound"))
    heads = {head: text(f"phases.{head}") for head in ("time", "time_share", "steps")} | {"step": first.step_head}
    heads |= {head: text(f"phases.{head}") for head in ("tokens_per_s", "bandwidth", "compute")}
    for head in heads.values():
        table.add_column(head, justify="right")
    for row in first.phases:
        table.add_row(*(_text(cell) for cell in (
            strings.phase_label(row.phase), row.bound_label, row.time, row.time_share, row.steps, row.step_in_words,
            row.tokens_per_s, str(row.bandwidth), str(row.compute))))  # fmt: skip
    return table
