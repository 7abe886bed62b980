"""The findings: what would save time, as the document ranks it, with its evidence; and the rules that found nothing.

What could be wrong: savings are of one change alone and do not add up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Finding, Report
from traceanalyzer.report.sections import PhaseName
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.kernel_names import SHOWN, labels
from traceanalyzer.report.views.pieces import Fact, Figure

_PLAIN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel that a change touches; the floats are what the printed figures are sorted by."""

    label: str
    name: str
    time: str
    time_us: float
    count: str
    count_per_step: float


@dataclass(frozen=True, slots=True)
class FindingView:
    """One thing to change: what it saves, what the step becomes, and why it is believed."""

    anchor: str
    title: str
    phase_label: str
    share_of_span: str
    saving: str
    then: str
    confidence: str
    figures: Mapping[str, str]
    action: str
    evidence: tuple[str, ...]
    kernels: tuple[KernelLine, ...]
    kernels_omitted: str
    assumptions: tuple[str, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The figures that are known, with their labels."""
        return tuple(Fact(text(f"findings.{key}"), Figure(printed)) for key, printed in self.figures.items())

    def figure(self, key: str) -> str:
        """One figure as printed, or that it is not known."""
        return self.figures.get(key, fmt.UNKNOWN)

    @property
    def aside(self) -> str:
        """Saving, prediction and confidence in one line, for renderings without columns."""
        return "; ".join(part for part in (self.saving, self.then, self.confidence) if part)


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule that found nothing, and why."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class FindingsView:
    """What was found, most worthwhile first, and the other rules under a line that counts them."""

    found: tuple[FindingView, ...]
    others: tuple[tuple[str, str, tuple[Judged, ...]], ...]
    nothing: str


def findings_view(report: Report) -> FindingsView | None:
    """The findings of a report, or None where no rule was asked."""
    if not report.findings:
        return None
    device = rows.slowest_device(report)
    rates = {row.phase: row.tokens_per_s for row in rows.phases_of(report, device)}
    found = [finding for finding in report.findings if finding.status == "found"]
    taken: set[str] = set()
    views = tuple(_finding(finding, number, taken, rates) for number, finding in enumerate(found, start=1))
    others = []
    for status in ("passed", "not_applicable", "error"):
        judged = tuple(Judged(row.title, row.reason or "") for row in report.findings if row.status == status)
        if judged:
            others.append((status, text(f"findings.{status}", count=len(judged)), judged))
    counts = Counter(finding.status for finding in report.findings)
    nothing = text("actions.none", passed=counts["passed"], apart=counts["not_applicable"], unknown=counts["error"],
                   count=len(report.findings))  # fmt: skip
    return FindingsView(views, tuple(others), "" if views else nothing)


def _finding(finding: Finding, number: int, taken: set[str], rates: Mapping[PhaseName, float | None]) -> FindingView:
    anchor = f"finding-{finding.id}" if _PLAIN_ID.fullmatch(finding.id) else f"finding-{number}"
    if anchor in taken:
        anchor = f"finding-{number}-again"
    taken.add(anchor)
    omitted, confidence, span = finding.kernels_omitted, finding.confidence, finding.saving_share_of_span
    return FindingView(
        anchor=anchor,
        title=finding.title,
        phase_label=strings.phase_label(finding.phase) if finding.phase else "",
        share_of_span="" if span is None else text("phases.share_of_span", share=fmt.percent(span)),
        saving=_saving(finding, rates.get(finding.phase) if finding.phase else None),
        then=_then(finding),
        confidence="" if confidence is None else text("actions.confidence", share=fmt.percent(confidence)),
        figures=_figures(finding),
        action=finding.action or "",
        evidence=tuple(finding.evidence),
        kernels=tuple(_kernels(finding)),
        kernels_omitted=text("findings.kernels_omitted", count=fmt.count(omitted)) if omitted else "",
        assumptions=tuple(finding.assumptions),
    )


def _more_per_step(finding: Finding) -> bool:
    """Whether a step puts out more afterwards, so that what is saved is time per token and the step may be longer."""
    saved, share, then = finding.saving_us_per_step, finding.saving_share, finding.predicted_step_us
    return bool(saved and share and then) and (then or 0.0) > 1.15 * ((saved or 0.0) / (share or 1.0) - (saved or 0.0))


def _saving(finding: Finding, rate: float | None) -> str:
    share = fmt.percent(finding.saving_share)
    phase = f"{strings.phase_label(finding.phase).lower()} " if finding.phase else ""
    if _more_per_step(finding):
        if rate and finding.predicted_tokens_per_s:
            return text("actions.saving_rate", ratio=fmt.factor(finding.predicted_tokens_per_s / rate))
        return text("actions.saving_per_token", share=share)
    if finding.saving_us_per_step is None:
        known = finding.saving_share is not None
        return text("actions.saving_share", share=share, phase=phase) if known else ""
    key = "actions.saving" if finding.saving_share is not None else "actions.saving_time"
    return text(key, saving=fmt.duration(finding.saving_us_per_step), share=share, phase=phase)


def _then(finding: Finding) -> str:
    """What a step and the throughput become."""
    step, rate = fmt.duration(finding.predicted_step_us), fmt.rate(_rounded(finding.predicted_tokens_per_s), "tokens")
    if finding.predicted_step_us is None:
        return "" if finding.predicted_tokens_per_s is None else text("actions.then_tokens", rate=rate)
    key = "actions.then" if finding.predicted_tokens_per_s is None else "actions.then_both"
    return text(key, step=step, rate=rate)


def _rounded(prediction: float | None) -> float | None:
    """A prediction to three digits, for it has no more to give."""
    return None if prediction is None else float(f"{prediction:.3g}")


def _figures(finding: Finding) -> dict[str, str]:
    """The figures that are known, printed, by the last part of their label's key."""
    listed = (
        ("saves", finding.saving_us_per_step, fmt.duration),
        ("saves_share", finding.saving_share, fmt.percent),
        ("saves_span", finding.saving_share_of_span, fmt.percent),
        ("step_then", finding.predicted_step_us, fmt.duration),
        ("tokens_then", _rounded(finding.predicted_tokens_per_s), fmt.count),
        ("confidence", finding.confidence, fmt.percent),
    )
    return {key: printed(value) for key, value, printed in listed if value is not None}


def _kernels(finding: Finding) -> list[KernelLine]:
    shown = labels([row.name for row in finding.kernels], SHOWN)
    return [
        KernelLine(
            label=label,
            name=row.name,
            time=fmt.duration(row.us_per_step),
            time_us=row.us_per_step,
            count=fmt.count(row.count_per_step),
            count_per_step=row.count_per_step,
        )
        for label, row in zip(shown, finding.kernels, strict=True)
    ]
