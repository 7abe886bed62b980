"""The critical path of one step, from its first activity to that of the next one, and what shortens it.

`graph` takes the step apart into host calls, waits and device activity that depend on each other; `path` says which
chain of them the step's time is, and how much earlier the next step would begin if one kind of them took no time.
"""

from traceanalyzer.analysis.critical.graph import Edge, Event, Graph, graph
from traceanalyzer.analysis.critical.path import CriticalPath, critical_path, times

__all__ = ["CriticalPath", "Edge", "Event", "Graph", "critical_path", "graph", "times"]
