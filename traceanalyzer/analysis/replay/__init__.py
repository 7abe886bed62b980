"""Work for kernels that ran without shapes: replays of graphs, and steps recorded without them."""

from traceanalyzer.analysis.replay.capture import evidence_of
from traceanalyzer.analysis.replay.fill import fill
from traceanalyzer.analysis.replay.matched import fill_matched
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.replay.reference import Evidence

__all__ = ["Evidence", "Recorded", "evidence_of", "fill", "fill_matched"]
