"""Preloads the libraries of test ranks, in the process from which the ranks are forked.

Their objects are frozen, so that a rank's garbage collection skips hundreds of thousands of them.
With DeepSpeed and peft that would take most of a small trial.
"""

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
