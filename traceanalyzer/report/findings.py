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
    """What would hardly help: with numbers where they are known, else as the verdict has it."""
    numbered = excluded(analysis, findings)
    said = {fact.code for fact in numbered}
    instead = {"more_compute": "compute_2x", "more_bandwidth": "bandwidth_2x", "fewer_launches": "launches_free"}
    plain = [code for code in analysis.verdict.ruled_out if instead.get(code, code) not in said]
    return [
        *(strings.ruled_out_by(fact.code, fact.values) for fact in numbered),
        *(strings.ruled_out(code) for code in plain),
    ]
