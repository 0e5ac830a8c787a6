"""What a sweep expects of its trials, corrected by those that were measured before."""

from orchestrator.forecasting.base import AbstractForecasts, NoForecasts
from orchestrator.forecasting.forecaster import Forecaster
from orchestrator.forecasting.traced import TracedForecasts

__all__ = ["AbstractForecasts", "Forecaster", "NoForecasts", "TracedForecasts"]
