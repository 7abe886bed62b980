"""What a step would take if something about it changed: the model behind savings, sensitivities and batch sizes.

`step_model` takes the mean complete step of a phase apart. A `StepModel` is a value: every change gives another one, so
changes are applied one after the other and each finds what the earlier ones left (Amdahl); gains are never summed.
"""

from traceanalyzer.analysis.forecast.measure import step_model
from traceanalyzer.analysis.forecast.model import Change, Prediction, StepModel

__all__ = ["Change", "Prediction", "StepModel", "step_model"]
