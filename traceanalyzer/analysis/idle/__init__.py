"""Why a device was idle: every gap between its activities divided among causes, and who made it.

`divide` gives each gap's causes, which sum to the idle buckets of the ledger exactly; `culprits` names the calls, ops
and Python frames behind them; `notes` says how far the causes can be known at all. See docs/adr/0015-idle-causes.md.
"""

from traceanalyzer.analysis.idle.coverage import notes
from traceanalyzer.analysis.idle.culprits import culprits
from traceanalyzer.analysis.idle.divide import BUCKETS, LAUNCH_LATENCY_NS, Divided, divide

__all__ = ["BUCKETS", "LAUNCH_LATENCY_NS", "Divided", "culprits", "divide", "notes"]
