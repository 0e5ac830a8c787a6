"""Hugging Face's Trainer with its defaults and `auto_find_batch_size`: its trials and its speed."""

import tempfile
import time
from typing import Any, final

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.run import Run
from search_spaces.presets.catalogue import preset_config

WAY = "auto_find_batch_size"
DEFAULT_BATCH = 8  # of TrainingArguments.per_device_train_batch_size
_WARMUP = 3  # optimizer steps
_ROWS, _ENDLESS = 64, 1_000_000


@final
class Clock(TrainerCallback):  # type: ignore[misc]  # of a package whose types are not read
    """Times steps behind some of warm-up, and ends the training when there are enough."""

    def __init__(self, run: Run, steps: int, seconds: float) -> None:
        self._run = run
        self._steps, self._seconds = steps, seconds
        self._tried: int | None = None  # the batch size that is being tried
        self._started, self._began = time.time(), 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """An attempt begins: the one before it, if there was one, ran out of memory."""
        if self._tried is not None:
            self._tell("out_of_memory", self._tried, 0.0)
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
        self._tell("measured", batch, done * batch * args.gradient_accumulation_steps / spent)
        control.should_training_stop = True

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def _tell(self, outcome: str, batch: int, rate: float) -> None:
        seconds = time.time() - self._started
        figures = {"way": WAY, "seconds": seconds, "outcome": outcome, "rate": rate}
        self._run.write(f"batch {batch}", figures)


def measure(run: Run) -> None:
    """Trains Llama-3.2 1B until the speed is known, in samples per second."""
    transformers.logging.set_verbosity_error()
    spec = LLAMA_1B.spec(tiny=run.tiny)
    given = preset_config(spec.model.name) | spec.model.config
    given.pop("architectures")
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    clock = Clock(run, 2 if run.tiny else 20, 1.0 if run.tiny else 60.0)
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            auto_find_batch_size=True,
            gradient_accumulation_steps=max(spec.train.global_batch // DEFAULT_BATCH, 1),
            bf16=spec.train.precision == "bf16",
            use_cpu=run.tiny,
            max_steps=_ENDLESS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        shape = (_ROWS, spec.train.sequence_length)
        drawn = torch.randint(config.vocab_size, shape, generator=torch.Generator())
        rows = [{"input_ids": ids, "labels": ids} for ids in drawn] * (_ENDLESS // _ROWS)
        model = AutoModelForCausalLM.from_config(config)
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[clock]).train()
