"""What a step would take if something about it changed: the model behind savings, sensitivities and batch sizes.

`step_model` takes the mean complete step of a phase apart. A `StepModel` is a value: every change gives another one, so
changes are applied one after the other and each finds what the earlier ones left (Amdahl); gains are never summed.
"""

from traceanalyzer.analysis.forecast.batching import Batching, BatchPoint, batching, ridge_batch, with_sequences
from traceanalyzer.analysis.forecast.measure import step_model
from traceanalyzer.analysis.forecast.model import Change, Prediction, StepModel
from traceanalyzer.analysis.forecast.sensitivity import Sensitivity, sensitivity

__all__ = [
    "BatchPoint",
    "Batching",
    "Change",
    "Prediction",
    "Sensitivity",
    "StepModel",
    "batching",
    "ridge_batch",
    "sensitivity",
    "step_model",
    "with_sequences",
]
