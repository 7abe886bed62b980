"""What is known of the model that ran, field by field with its source, and the bytes and FLOPs that follow from it."""

from traceanalyzer.analysis.model.describe import describe
from traceanalyzer.analysis.model.description import CATALOGUE, RECORDER, TRACE, UNKNOWN, USER, Description
from traceanalyzer.analysis.model.observed import Observed, observe
from traceanalyzer.analysis.model.recorded import of_recorder
from traceanalyzer.analysis.model.sizes import config_of

__all__ = [
    "CATALOGUE",
    "RECORDER",
    "TRACE",
    "UNKNOWN",
    "USER",
    "Description",
    "Observed",
    "config_of",
    "describe",
    "observe",
    "of_recorder",
]
