"""What trains: a model with its plan applied, one optimizer step at a time."""

from workers.engines.base import AbstractTraining, StateBytes

__all__ = ["AbstractTraining", "StateBytes"]
