"""Samples of varied lengths, padded to their longest or to a multiple of 64 tokens.

Hopper's attention makes a plan for each new width, which no warm-up is long enough for.
"""

from dataclasses import fields
from statistics import NormalDist

import numpy as np

from benchmarks.gpu.cases import LLAMA_1B, TINY_TOKENS, reference
from benchmarks.gpu.run import Run
from search_spaces.plan import Plan

MULTIPLE, TINY_MULTIPLE = 64, 8
_KNOB = "pad_multiple"
_SAMPLES = 400  # quantiles of the lengths
_SHORT, _SPREAD = 0.25, 0.6  # median as a share of the longest; deviation of the logarithm
_OBJECTIVE = {"min_steps": 12, "max_steps": 24, "max_seconds": 12.0, "interval": 0.01}


def lengths(longest: int, multiple: int) -> dict[int, float]:
    """Log-normal lengths in tokens with their frequencies, rounded up to a multiple."""
    shares = [(at + 0.5) / _SAMPLES for at in range(_SAMPLES)]
    drawn = np.exp([_SPREAD * NormalDist().inv_cdf(share) for share in shares])
    rounded = -(-np.clip(drawn * _SHORT * longest, 2, longest) // multiple) * multiple
    values, counts = np.unique(np.minimum(rounded, longest).astype(int), return_counts=True)
    return dict(zip(values.tolist(), counts.astype(float).tolist(), strict=True))


def measure(run: Run) -> None:
    """Measures both; without the knob, the data's own lengths are rounded."""
    longest = TINY_TOKENS if run.tiny else LLAMA_1B.sequence_length
    has_knob = _KNOB in {field.name for field in fields(Plan)}
    for multiple in (1, TINY_MULTIPLE if run.tiny else MULTIPLE):
        name = f"multiple of {multiple}"
        if run.has(name):
            continue
        spec, plan = LLAMA_1B.one_plan(
            reference(tiny=run.tiny) | ({_KNOB: multiple} if has_knob else {}),
            tiny=run.tiny,
            data={"lengths": lengths(longest, 1 if has_knob else multiple)},
            **({} if run.tiny else {"objective": _OBJECTIVE}),
        )
        run.trial(name, spec, plan, way=name)
