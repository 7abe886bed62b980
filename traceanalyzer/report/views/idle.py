"""Why the device was idle, in a few sentences per phase and in a table; and how work was launched.

A sentence takes together what one culprit made: a wait and the launching anew after it. What could be wrong: names come
from the trace; they are shortened here and escaped where they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import CriticalPart, CriticalPath, IdleCause, Launches, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.text_safety import shorten, visible
from traceanalyzer.report.views.pieces import Fact, Figure

_SAID = 5
_WORTH_SAYING = 0.01
_SHOWN = 40
_NAME = 90
_ALIKE = {"sync_restart": "sync"}
_PLAIN = ("launch", "graph_launch", "latency", "unknown")
_PHASES = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One row of the table, printed."""

    phase: str
    phase_label: str
    cause: str
    who: str
    per_step: str
    total: str
    share: str
    gaps: str
    longest: str


@dataclass(frozen=True, slots=True)
class LaunchView:
    """How one phase was launched."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class PathView:
    """The critical path of one phase's median step: parts, time on the path, what is saved without them."""

    title: str
    lead: str
    parts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class IdleView:
    """The sentences, by phase, the table, and the launches."""

    title: str
    lead: str
    said: tuple[tuple[str, ...], ...]
    rows: tuple[CauseRow, ...]
    launches: tuple[LaunchView, ...]
    paths: tuple[PathView, ...]


def idle_view(report: Report) -> IdleView | None:
    """Of the slowest device; None where neither a gap nor a launch is known."""
    device = rows.slowest_device(report)
    causes = [row for row in report.idle_causes if device and (row.rank, row.device) == (device.rank, device.device)]
    if not causes and not report.launches:
        return None
    on_cpu = device is not None and device.kind == "cpu"
    return IdleView(
        title=text("idle.title_cpu" if on_cpu else "idle.title"),
        lead=text("idle.lead", device=shorten(visible(device.name or ""), _NAME) if device else ""),
        said=tuple(said for phase in _PHASES if (said := sentences(report, phase))),
        rows=tuple(_row(row) for row in causes[:_SHOWN]),
        launches=()
        if on_cpu and not any(one.reads for one in report.launches)
        else tuple(map(_launch, report.launches)),
        paths=tuple(map(_path, report.critical_path)),
    )


def sentences(report: Report, phase: str) -> tuple[str, ...]:
    """What made the slowest device idle in one phase, in sentences, the most time first."""
    device = rows.slowest_device(report)
    found: dict[tuple[str, ...], list[IdleCause]] = {}
    for row in report.idle_causes:
        own = device and (row.rank, row.device) == (device.rank, device.device)
        if not own or row.phase != phase or row.share_of_phase is None or row.others:
            continue
        cause = _ALIKE.get(row.cause, row.cause)
        named = cause not in _PLAIN
        key = (cause, *((value or "") if named else "" for value in (row.op, row.frame, row.during)))
        found.setdefault(key, []).append(row)
    ranked = sorted(found.values(), key=lambda group: -sum(row.share_of_phase or 0.0 for row in group))
    said = []
    for group in ranked[:_SAID]:
        share = sum(row.share_of_phase or 0.0 for row in group)
        if share >= _WORTH_SAYING:
            of = "idle.of_each" if rows.step_count(report, phase) > 1 else "idle.of_phase"
            of_phase = text(of, phase=strings.phase_label(phase).lower())
            said.append(text("idle.part", share=fmt.percent(share), of=of_phase, what=_what(group[0], report)))
    return tuple(said)


def _what(row: IdleCause, report: Report) -> str:
    cause = _ALIKE.get(row.cause, row.cause)
    stats = next((one for one in report.launches if one.phase == row.phase), None)
    if cause == "launch" and stats and stats.calls_per_step and stats.us_per_launch:
        count, cost = fmt.count(stats.calls_per_step), fmt.duration(stats.us_per_launch)
        return text("idle.say.launches", count=count, cost=cost)
    if cause in _PLAIN:
        return text(f"idle.say.{cause}")
    if cause in ("sync", "alloc"):
        who = " ".join(_who(row)) or text("idle.call")
        return text(f"idle.say.{cause}", who=who)
    who = ", ".join(_who(row))
    return text(f"idle.say.{cause}", who=f": {who}" if who else "")


def _who(row: IdleCause) -> list[str]:
    """Who made the gap, in pieces that read one after the other."""
    called = row.cause in ("sync", "sync_restart", "alloc")
    name = _short(row.call)
    pieces = [name] if name else []
    if row.op:
        op = _short(row.op)
        pieces += [text("idle.in_op" if called and name else "idle.after_op", op=op)]
    if row.frame:
        pieces.append(text("idle.at", frame=_short(row.frame)))
    if row.during:
        pieces.append(text("idle.during", name=_short(row.during)))
    return pieces


def _short(name: str | None) -> str:
    return shorten(visible(name), _NAME) if name else ""


def _row(row: IdleCause) -> CauseRow:
    who = text("idle.others", count=row.others) if row.others else ", ".join(_who(row))
    return CauseRow(
        phase=row.phase,
        phase_label=strings.phase_label(row.phase),
        cause=text(f"idle.cause.{row.cause}"),
        who=who,
        per_step=fmt.duration(row.us_per_step),
        total=fmt.duration(row.us),
        share=fmt.percent(row.share_of_phase),
        gaps=fmt.count(row.gaps),
        longest=fmt.duration(row.longest_us),
    )


def _path(path: CriticalPath) -> PathView:
    shown = [part for part in path.parts if max(part.us or 0.0, part.saves_us or 0.0) >= _WORTH_SAYING * path.step_us]
    phase = strings.phase_label(path.phase).lower()
    return PathView(
        title=text("critical.title", phase=phase),
        lead=text("critical.lead", time=fmt.duration(path.step_us)),
        parts=tuple((_kind(part), *_printed(part)) for part in shown),
    )


def _printed(part: CriticalPart) -> tuple[str, str]:
    saves = text("critical.saved", minus="\N{MINUS SIGN}", time=fmt.duration(part.saves_us)) if part.saves_us else ""
    return fmt.duration(part.us) if part.us else "", saves


def _kind(part: CriticalPart) -> str:
    name, _, category = part.kind.partition(".")
    return text(f"critical.kind.{name}", category=_short(category))


def _launch(stats: Launches) -> LaunchView:
    launched = stats.calls_per_step is not None
    facts: list[tuple[str, str]] = [("kernels", fmt.count(stats.kernels_per_step))]
    if launched:
        facts += [
            ("calls", fmt.count(stats.calls_per_step)),
            ("graph_calls", fmt.count(stats.graph_calls_per_step)),
            ("call", fmt.duration(stats.us_per_call)),
            ("cost", fmt.duration(stats.us_per_launch)),
            ("queue", fmt.count(stats.queue_depth_p50)),
            ("empty", fmt.percent(stats.queue_empty_share)),
        ]
    facts += [
        ("short", fmt.percent(stats.short_kernels_share)),
        ("short_time", fmt.percent(stats.short_kernels_time_share)),
    ]
    if launched:
        facts.append(("known", fmt.percent(stats.known_share)))
    title = text("launches.title" if launched else "launches.title_cpu")
    heading = text("launches.of", title=title, phase=strings.phase_label(stats.phase))
    return LaunchView(heading, (*_facts(facts), *_reads(stats)))


def _facts(pairs: Sequence[tuple[str, str]]) -> tuple[Fact, ...]:
    return tuple(Fact(text(f"launches.{name}", micro="\N{MICRO SIGN}"), Figure(value)) for name, value in pairs)


def _reads(stats: Launches) -> tuple[Fact, ...]:
    return tuple(
        Fact(
            text("launches.read", op=_short(read.op)),
            Figure(text("launches.read_value", count=fmt.count(read.per_step), time=fmt.duration(read.us_per_step))),
        )
        for read in stats.reads
    )
