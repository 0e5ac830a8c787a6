"""Hugging Face's stock Trainer with the plan that a sweep found.

    plimsoll tune examples/trainer.yaml                    # two minutes, for its answer
    torchrun --nproc-per-node 2 examples/hf_trainer.py examples/trainer.yaml

The model is the sweep's Llama with random weights, the data a few rows of random tokens.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

from plimsoll import load_best

ROWS, SEQUENCE_LENGTH, STEPS = 64, 64, 4


def main(sweep: str) -> None:
    """Trains some steps; all that the plan says is in three lines."""
    best = load_best(sweep)
    torch.manual_seed(best.spec.train.seed)
    config = LlamaConfig(tie_word_embeddings=True, **dict(best.spec.model.config))
    tokens = torch.randint(config.vocab_size, (ROWS, SEQUENCE_LENGTH))

    model = best.prepare(AutoModelForCausalLM.from_config(config))
    arguments = TrainingArguments(**best.training_arguments(output_dir="out", max_steps=STEPS))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model=model, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main(sys.argv[1])
