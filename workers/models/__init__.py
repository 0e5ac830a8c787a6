"""Models: what is known of one before it is built, and the built one."""

from workers.models.built import BatchMaker, BuiltModel, SampleNumbers
from workers.models.front import build, build_fake, build_whole, describe

__all__ = [
    "BatchMaker",
    "BuiltModel",
    "SampleNumbers",
    "build",
    "build_fake",
    "build_whole",
    "describe",
]
