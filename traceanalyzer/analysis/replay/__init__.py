"""Work for kernels that ran without shapes: replays of graphs, and steps recorded without them."""

from traceanalyzer.analysis.replay.fill import fill

__all__ = ["fill"]
