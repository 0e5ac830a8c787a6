"""Your own training loop with the best plan of a sweep: any torch module, any data.

    plimsoll init --example demo && cd demo && plimsoll tune demo.yaml   # or make demo: a sweep
    torchrun --nproc-per-node 2 ../examples/own_loop.py demo.yaml        # in that folder

The model is the demo's Llama, made with transformers, with random weights.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from plimsoll import load_best

SEQUENCE_LENGTH, STEPS = 64, 10


def main(sweep: str) -> None:
    """Trains on the same few samples again and again, so that their loss falls."""
    best = load_best(sweep)
    torch.manual_seed(best.spec.train.seed)  # the same weights on each rank
    # what the specification changes of the preset, whose weights are tied
    config = LlamaConfig(tie_word_embeddings=True, **dict(best.spec.model.config))
    training = best.apply(AutoModelForCausalLM.from_config(config))

    draw = torch.Generator().manual_seed(training.data_rank)  # each data rank its own samples
    size = (best.plan.accumulation, best.plan.micro_batch, SEQUENCE_LENGTH)
    tokens = torch.randint(config.vocab_size, size, generator=draw)
    for step in range(STEPS):
        loss = training.step([{"input_ids": batch, "labels": batch} for batch in tokens])
        if training.rank == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    training.close()


if __name__ == "__main__":
    main(sys.argv[1])
