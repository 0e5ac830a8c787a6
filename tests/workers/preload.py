"""Imported once by the process that ranks of tests are forked from: all that ranks load.

What it makes is frozen, so that no collection of a rank looks through hundreds of thousands of
objects of libraries: with DeepSpeed and peft among them that takes most of a small trial.
"""

from __future__ import annotations

import gc

import bitsandbytes  # noqa: F401
import peft  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import workers.engines.deepspeed
import workers.entry
import workers.parallel.pipeline
import workers.worker  # noqa: F401

gc.collect()
gc.freeze()
