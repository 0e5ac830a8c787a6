"""Models: what is known of one before it is built, and the built one."""

from workers.models.built import BatchMaker, BuiltModel, SampleNumbers
from workers.models.front import build, describe

__all__ = ["BatchMaker", "BuiltModel", "SampleNumbers", "build", "describe"]
