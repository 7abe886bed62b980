"""Findings in the analysis' codes -> findings of the document: names decoded, sentences made, the rest counted."""

from __future__ import annotations

from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.findings.excluded import excluded
from traceanalyzer.findings.model import Finding
from traceanalyzer.report import document as doc
from traceanalyzer.report import strings
from traceanalyzer.report.values import capped, us
from traceanalyzer.trace.tables import Trace

MOST_KERNELS = 20
"""Kernels listed per finding, the longest; the rest is counted."""


def rows(analysis: Analysis, findings: tuple[Finding, ...]) -> list[doc.Finding]:
    """The findings of the document, in the order given."""
    return [_row(analysis.main.timeline.trace, finding) for finding in findings]


def _row(trace: Trace, finding: Finding) -> doc.Finding:
    found = finding.status == "found"
    reason = finding.reason
    return doc.Finding(
        id=finding.id,
        title=strings.finding_title(finding.id, found),
        status=finding.status,
        phase=finding.phase,
        saving_us_per_step=us(finding.saving_ns),
        saving_share=finding.saving_share,
        saving_share_of_span=finding.saving_share_of_span,
        predicted_step_us=us(finding.predicted_step_ns),
        predicted_tokens_per_s=finding.predicted_tokens_per_s,
        confidence=finding.confidence,
        evidence=[strings.finding_fact(fact.code, fact.values) for fact in finding.evidence],
        action=strings.finding_action(finding.id) if found else None,
        reason=strings.finding_fact(reason.code, reason.values) if reason else None,
        kernels=[
            doc.FindingKernel(
                name=capped(trace.text(kernel.name)),
                us_per_step=kernel.ns_per_step / 1e3,
                count_per_step=kernel.count_per_step,
            )
            for kernel in finding.kernels[:MOST_KERNELS]
        ],
        kernels_omitted=max(len(finding.kernels) - MOST_KERNELS, 0),
        assumptions=[strings.finding_assumption(code) for code in finding.assumptions],
    )


def ruled_out(analysis: Analysis, findings: tuple[Finding, ...]) -> list[str]:
    """What would hardly help: with its number, or as the verdict has it where the number is not known.

    A number that is known but large says that the change helps, whatever the verdict takes from the phase's shares.
    """
    phase = analysis.verdict.phase
    plain = analysis.verdict.ruled_out
    if phase is not None and phase.phase == "decode":
        known = _judged(analysis, findings)
        plain = tuple(code for code in plain if code not in known)
    return [
        *(strings.ruled_out_by(fact.code, fact.values) for fact in excluded(analysis, findings)),
        *(strings.ruled_out(code, phase.phase if phase else None) for code in plain),
    ]


def _judged(analysis: Analysis, findings: tuple[Finding, ...]) -> set[str]:
    """The verdict's codes for which the decode step's own figures say how much the change would save."""
    figures = analysis.sensitivity
    shares = {
        "more_compute": figures.compute_2x,
        "more_bandwidth": figures.bandwidth_2x,
        "fewer_launches": figures.launches_free,
    } if figures else {}  # fmt: skip
    known = {code for code, share in shares.items() if share is not None}
    batch = next((finding for finding in findings if finding.id == "decode_batch_below_ridge"), None)
    return known | {"larger_batch"} if batch is not None and batch.status in ("found", "passed") else known
