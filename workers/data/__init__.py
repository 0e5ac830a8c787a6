"""Data: samples of tokens, which of them a step takes, and the batches made of them."""

from workers.data.arrange import arrange
from workers.data.batch import MicroBatch
from workers.data.batches import BatchSource, StepBatches, batch_source
from workers.data.collate import collate, targets_of
from workers.data.dataset import Dataset, load_dataset
from workers.data.order import longest_samples, step_samples
from workers.data.profile import profile

__all__ = [
    "BatchSource",
    "Dataset",
    "MicroBatch",
    "StepBatches",
    "arrange",
    "batch_source",
    "collate",
    "load_dataset",
    "longest_samples",
    "profile",
    "step_samples",
    "targets_of",
]
