"""Overhead of a trial beyond its work, for a model of a billion parameters: warm, and cold.

From plan to result, less the building of the model and its steps: of a sweep's own groups, and of
a `TorchTrainer` for each trial (`benchmarks.trial_overhead`).
"""

from __future__ import annotations

from benchmarks import trial_overhead
from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.task import Figures, Task

WARM, TINY_WARM = 8, 3
_SPACE = {  # a few plans that fit any GPU of 24 GiB and more
    **{"engine": ["torch"], "micro_batch": [1, 2], "checkpoint_ratio": [0.0, 1.0]},
    **{"attention": ["sdpa"], "optimizer": ["adamw_fused"], "compile": [False]},
}
_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 5.0, "interval": 0.1}


def measure(task: Task) -> Figures:
    """Runs trials warm, then one cold."""
    spec = LLAMA_1B.spec(tiny=task.tiny, space=_SPACE, objective=_OBJECTIVE)
    return trial_overhead.measure(TINY_WARM if task.tiny else WARM, 1, spec=spec)
