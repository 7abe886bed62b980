"""The first screen and the shortest evidence as Markdown for a ticket: at most 60 lines, plain tables, no HTML.

GitHub and Jira both render it. Text from a trace is either a code span or escaped: it can open no table cell, link
nothing, mention nobody. What could be wrong: the two sites link more than Markdown says (issue numbers, commit hashes);
a text that looks like one may still become a link to something of the site's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from traceanalyzer.report import format as fmt
from traceanalyzer.report.document import Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.text_safety import shorten, visible
from traceanalyzer.report.views.bars import LedgerView, ledger_view
from traceanalyzer.report.views.findings import FindingsView, findings_view
from traceanalyzer.report.views.idle import sentences
from traceanalyzer.report.views.kernel_table import kernel_view
from traceanalyzer.report.views.pieces import Fact, Figure
from traceanalyzer.report.views.summary import FirstScreen, first_screen

MAX_LINES = 60
_FOOTER = 2
_TABLE_HEAD = 3
_KERNELS = 5
_CAUSES = 4
_FINDINGS = 8
_NOTES = 3
_RULED_OUT = 5
_NAME = 90
_TEXT = 400

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&]|^[-+=])")
_NUMBERED = re.compile(r"^(\d+)(?=[.)]\s)")
_HARMLESS = re.compile("[A-Za-z0-9 .,/:+%()\N{MULTIPLICATION SIGN}\N{EN DASH}\N{MICRO SIGN}\N{MIDDLE DOT}-]*")
_LOOKALIKES = str.maketrans({"`": "\N{MODIFIER LETTER GRAVE ACCENT}", "|": "\N{BROKEN BAR}"})


def render(report: Report) -> str:
    """The Markdown of a report, ending with a line feed."""
    first = first_screen(report)
    lines = [f"## {plain(first.title)}"]
    lines += _line(f"**{plain(first.simulated)}.** {text('simulated.meaning')}" if first.simulated else "")
    lines += ["", _joined(first.ran)]
    lines += _line(f"**{text('lost.title')}:** {' '.join(map(plain, first.lost))}" if first.lost else "")
    lines += ["", f"**{plain(first.headline)}**"]
    lines += _line(". ".join(plain(part) for part in (first.confidence, first.does_not_help) if part))
    lines += _line(plain(first.straggler))
    lines += ["", *_quality(first)]
    lines += _line(plain(first.redacted))
    lines += _line(_joined(first.service))
    lines += _side_by_side([(fact.label, fact.figure) for fact in first.speed])
    lines += _line(" ".join(plain(part) for part in (first.work_ratio, first.log) if part))
    lines += _side_by_side([(meter.label, meter.figure) for meter in first.meters])
    lines += _line(f"{text('counters.title')}: {_joined(first.counters)}" if first.counters else "")
    lines += _phases(first)
    lines += _line(" ".join(plain(part) for part in (first.floor, first.beyond, first.ideal, first.limits) if part))
    lines += [*_actions(first), *_ruled_out(first)]
    lines += _line(_joined(first.cost))
    idle = _idle(report)
    for table in (_findings(findings_view(report), first), _ledger(ledger_view(report)), idle):
        lines += table if len(lines) + len(table) + _FOOTER <= MAX_LINES else []
    lines += _kernels(report, MAX_LINES - len(lines) - _FOOTER - _TABLE_HEAD)
    made_by = text("made_by", name=plain(report.tool.name), version=plain(report.tool.version))
    lines += ["", f"{made_by}. {text('report_id', id=plain(report.report_id[:12]))}."]
    return "\n".join(lines) + "\n"


def plain(value: str) -> str:
    """Text without any meaning to Markdown: specials escaped, an at sign that mentions nobody, links broken up."""
    safe = shorten(visible(value), _TEXT)
    safe = _SPECIAL.sub(r"\\\1", safe).replace("@", "\N{FULLWIDTH COMMERCIAL AT}")
    safe = _NUMBERED.sub(r"\1\\", safe)
    return safe.replace("://", ":\\//").replace("www.", "www\\.")


def code(value: str) -> str:
    """A name as a code span, or as plain text where it holds nothing but letters, digits and harmless signs."""
    safe = shorten(visible(value), _NAME)
    if _HARMLESS.fullmatch(safe) and "//" not in safe and "www." not in safe:
        return safe.strip()
    return f"`{safe.translate(_LOOKALIKES)}`"


def _joined(facts: Iterable[Fact]) -> str:
    separator = " \N{MIDDLE DOT} "
    return separator.join(f"{plain(fact.label)}: {code(str(fact.figure))}" for fact in facts)


def _line(sentence: str) -> list[str]:
    return ["", sentence] if sentence else []


def _quality(first: FirstScreen) -> list[str]:
    lines = [". ".join(plain(part) for part in (first.quality, first.profiling) if part) + "."]
    serious = [note for note in first.quality_notes if note.severity != "info" and note.message not in first.lost]
    if serious:
        lines.append("")
    lines += [f"- {plain(note.message)}" for note in serious[:_NOTES]]
    if len(serious) > _NOTES:
        lines.append(f"- {text('quality.more', count=len(serious) - _NOTES)}")
    return lines


def _side_by_side(figures: Sequence[tuple[str, Figure]]) -> list[str]:
    return _table([[label for label, _ in figures], [str(figure) for _, figure in figures]], words=frozenset())


def _phases(first: FirstScreen) -> list[str]:
    before, after = ("phase", "bound", "time", "time_share", "steps"), ("tokens_per_s", "bandwidth", "compute")
    heads = [*(text(f"phases.{head}") for head in before), first.step_head, *(text(f"phases.{head}") for head in after)]
    cells = [
        [row.label, row.bound_label, row.time, row.time_share, row.steps, row.step_in_words, row.tokens_per_s,
         str(row.bandwidth), str(row.compute)]
        for row in first.phases
    ]  # fmt: skip
    return _table([heads, *cells], words=frozenset({0, 1})) if cells else []


def _actions(first: FirstScreen) -> list[str]:
    if not first.actions:
        return _line(plain(first.nothing_to_do))
    lines = ["", f"**{text('actions.title')}**", ""]
    for number, action in enumerate(first.actions, start=1):
        lines.append(f"{number}. **{plain(action.title)}** ({plain(action.aside)}): {plain(action.action)}")
        lines += [f"   - {plain(evidence)}" for evidence in action.evidence[:1]]
    return lines


def _ruled_out(first: FirstScreen) -> list[str]:
    if not first.ruled_out:
        return []
    return ["", f"**{text('ruled_out.title')}**", "", *(f"- {plain(item)}" for item in first.ruled_out[:_RULED_OUT])]


def _findings(view: FindingsView | None, first: FirstScreen) -> list[str]:
    """What was found beyond what the first screen names, and how the other rules ended."""
    if view is None:
        return []
    heads = ("finding", "phase", "saves", "step_then", "tokens_then", "confidence")
    said = {action.anchor for action in first.actions}
    more = [row for row in view.found if row.anchor not in said][:_FINDINGS]
    cells = [[row.title, row.phase_label, *(row.figure(head) for head in heads[2:])] for row in more]
    lines = _table([[text(f"findings.{head}") for head in heads], *cells], words=frozenset({0, 1})) if cells else []
    return lines + _line(" ".join(f"{plain(title)}." for _, title, _ in view.others))


def _ledger(view: LedgerView | None) -> list[str]:
    if view is None:
        return []
    groups = dict.fromkeys(group.label for bar in view.bars for group in bar.groups)
    head = [text("ledger.title"), *(bar.label for bar in view.bars)]
    shares = [{group.label: group.share for group in bar.groups} for bar in view.bars]
    return _table([head, *([label, *(share.get(label, fmt.DASH) for share in shares)] for label in groups)])


def _idle(report: Report) -> list[str]:
    """Why the device was idle: a line for each of the longest causes of the phase that they are most of."""
    said = sentences(report, "decode") or sentences(report, "prefill")
    if not said:
        return []
    return ["", f"**{text('idle.title')}**", "", *(f"- {plain(sentence)}" for sentence in said[:_CAUSES])]


def _kernels(report: Report, room: int) -> list[str]:
    view = kernel_view(report)
    if view is None or room < 1:
        return []
    heads = ("name", "phase", "count", "total", "wasted", "bound")
    cells = [
        [code(row.label), row.phase_label, row.count, row.total, row.wasted, row.bound]
        for row in view.rows[: min(_KERNELS, room)]
    ]
    words = frozenset({0, 1, len(heads) - 1})
    return _table([[text(f"kernels.{head}") for head in heads], *cells], words=words, escaped=frozenset({0}))


def _table(
    cells: Sequence[Sequence[str]],
    words: frozenset[int] = frozenset({0}),
    escaped: frozenset[int] = frozenset(),
) -> list[str]:
    """A table after an empty line; the first row is its head.

    Columns in `words` are aligned to the left, the others to the right; columns in `escaped` are safe already.
    """
    if not cells[0]:
        return []
    head, *body = [
        "| " + " | ".join(cell if at in escaped and row else plain(cell) for at, cell in enumerate(line)) + " |"
        for row, line in enumerate(cells)
    ]
    rule = "| " + " | ".join("---" if at in words else "---:" for at in range(len(cells[0]))) + " |"
    return ["", head, rule, *body]
