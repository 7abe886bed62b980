"""Every sentence and label a reader of a report can meet, in one catalogue.

The rest of the product deals in codes and numbers; here they become words. A code that is missing falls back to its own
spelling, so that a user's run never fails over a sentence; the tests see to it that no code of the product is missing.

    labels       buckets, groups, phases, bounds, sources: one or two words each
    quality      what was lost, repaired or inconsistent in the data: one sentence per code
    verdict      the headline per bound, what does not help, and why
    assumptions  what a figure takes for granted: one sentence per code
    findings     what a rule found, what to do, why another found nothing: one sentence per code
    definitions  what every term of the report means and how it is computed
    page         titles, captions, footnotes and hints of the renderings
"""

from __future__ import annotations

from traceanalyzer.report.strings.assumptions import ASSUMPTIONS, assumption
from traceanalyzer.report.strings.definitions import DEFINITIONS, METHOD, READING
from traceanalyzer.report.strings.findings import (
    ACTIONS,
    FACTS,
    FINDING_ASSUMPTIONS,
    RULED_OUT_BY,
    SUBJECTS,
    TITLES,
    finding_action,
    finding_assumption,
    finding_fact,
    finding_title,
    ruled_out_by,
)
from traceanalyzer.report.strings.labels import (
    BUCKETS,
    GROUPS,
    bound_label,
    bucket_label,
    bucket_meaning,
    group_label,
    phase_label,
    source_label,
)
from traceanalyzer.report.strings.quality import QUALITY, quality_message
from traceanalyzer.report.strings.verdict import RULED_OUT, HeadlineFacts, headline, ruled_out

__all__ = [
    "ACTIONS",
    "ASSUMPTIONS",
    "BUCKETS",
    "DEFINITIONS",
    "FACTS",
    "FINDING_ASSUMPTIONS",
    "GROUPS",
    "METHOD",
    "QUALITY",
    "READING",
    "RULED_OUT",
    "RULED_OUT_BY",
    "SUBJECTS",
    "TITLES",
    "HeadlineFacts",
    "assumption",
    "bound_label",
    "bucket_label",
    "bucket_meaning",
    "finding_action",
    "finding_assumption",
    "finding_fact",
    "finding_title",
    "group_label",
    "headline",
    "phase_label",
    "quality_message",
    "ruled_out",
    "ruled_out_by",
    "source_label",
]
