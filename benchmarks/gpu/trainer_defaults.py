"""Hugging Face's Trainer with its defaults and `auto_find_batch_size`, and nothing of Plimsoll.

    python -m benchmarks.gpu.trainer_defaults JOB OUT

JOB is JSON: config, task, sequence_length, global_batch, bf16, cpu, seconds, steps. Each attempt
that ran out of memory, and the speed of the batch size that did not, is a line of JSON in OUT.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, final

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

DEFAULT_BATCH = 8  # of TrainingArguments.per_device_train_batch_size
_WARMUP = 3  # optimizer steps
_ENDLESS = 1_000_000
_HEADS = {"causal-lm": AutoModelForCausalLM, "masked-lm": AutoModelForMaskedLM}


@final
class RandomRows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of random tokens, the same each time."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(row)
        ids = torch.randint(self._vocabulary, (self._length,), generator=drawn)
        return {"input_ids": ids, "labels": ids}


@final
class Clock(TrainerCallback):
    """Times steps behind some of warm-up, and ends the training when there are enough."""

    def __init__(self, out: Path, steps: int, seconds: float) -> None:
        self._out, self._steps, self._seconds = out, steps, seconds
        self._tried: int | None = None  # the batch size that is being tried
        self._began = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """An attempt begins: the one before it, if there was one, ran out of memory."""
        if self._tried is not None:
            self._tell(kind="out_of_memory", batch=self._tried, rate=0.0)
        self._tried = state.train_batch_size

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The clock runs between two moments at which the device has nothing left to do."""
        done = state.global_step - _WARMUP
        if done < 0:
            return
        if done == 0:
            self._began = self._now()
            return
        if done < self._steps and time.perf_counter() - self._began < self._seconds:
            return
        spent = self._now() - self._began
        batch = self._tried or args.per_device_train_batch_size
        samples = done * batch * args.gradient_accumulation_steps
        self._tell(kind="measured", batch=batch, rate=samples / spent)
        control.should_training_stop = True

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def _tell(self, **told: Any) -> None:
        with self._out.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps({"at": time.time(), **told}) + "\n")


def train(job: dict[str, Any], out: Path) -> None:
    """Trains until the speed is known."""
    transformers.logging.set_verbosity_error()
    given = dict(job["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    model = _HEADS[job["task"]].from_config(config)
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            auto_find_batch_size=True,
            gradient_accumulation_steps=max(job["global_batch"] // DEFAULT_BATCH, 1),
            bf16=job["bf16"],
            use_cpu=job["cpu"],
            max_steps=_ENDLESS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        rows = RandomRows(config.vocab_size, job["sequence_length"])
        clock = Clock(out, job["steps"], job["seconds"])
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[clock]).train()


def main() -> None:
    """Trains what a job says."""
    job, out = sys.argv[1:]
    train(json.loads(Path(job).read_text("utf-8")), Path(out))


if __name__ == "__main__":
    main()
