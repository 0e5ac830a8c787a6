"""Hugging Face's Trainer: tune one that exists, and compare its settings with the answer."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.api import TunedPlan, load_best
from plimsoll.calls import tune as tune_job
from plimsoll.results import Sweep
from search_spaces.errors import UserError
from search_spaces.specification.trainer_configs.document import flattened
from search_spaces.specification.trainer_configs.tables import trainers
from workers.models.user_trainer import Callback, specification

__all__ = ["AnswerCallback", "specification", "tune"]
LOGGER = logging.getLogger("plimsoll")


def tune(trainer: Any, /, *, minutes: float | None = None, view: bool = True, **keys: Any) -> Sweep:
    """Tunes the training of a Trainer, by `plimsoll.tune` of its `specification`.

    For more ranks than one set `workers`, and `global_batch` for all of them.
    """
    return tune_job(specification(trainer), minutes=minutes, view=view, **keys)


class AnswerCallback(Callback):  # type: ignore[misc]
    """Says once, to the logger `plimsoll`, where a Trainer differs from `load_best(where)`."""

    def __init__(self, where: str | Path | None = None) -> None:
        self._best: TunedPlan | None = load_best(where)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Logs the sentence: a warning if anything differs."""
        best, self._best = self._best, None
        if best is None or not state.is_world_process_zero:
            return
        try:
            words = ", ".join(_differences(best, args, others["model"]))
        except UserError as error:
            words = str(error)
        same = f"differs ({words}) from" if words else "has the settings of"
        sentence = f"this Trainer {same} the answer, trial {best.trial} of {best.study}"
        LOGGER.log(logging.WARNING if words else logging.INFO, sentence)


def _differences(best: TunedPlan, args: Any, model: Any) -> Iterator[str]:
    plan, deepspeed = best.plan, getattr(args, "hf_deepspeed_config", None)
    here, answer = (
        {"fsdp_config.reshard_after_forward": bool(values.get("fsdp"))} | dict(flattened(values))
        for values in (
            args.to_dict()
            | {"world_size": args.world_size, "deepspeed": deepspeed and deepspeed.config},
            best.training_arguments() | {"world_size": plan.world_size},
        )
    )
    for key in trainers()["TrainingArguments"].compared:
        if (here.get(key) or None) != (answer.get(key) or None):
            yield f"{key} is {here.get(key, False)}, there {answer.get(key, False)}"
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if attention != plan.attention and ":" not in best.spec.model.name:
        yield f"attention is {attention}, there {plan.attention}"
    held = str(getattr(model, "dtype", ""))
    if (plan.states, plan.engine) == ("bf16", "torch") and held != "torch.bfloat16":
        yield f"its weights are in {held} (TunedPlan.prepare)"
    signs = ("_checkpoint_wrapped_module", "_compiled_call_impl")
    is_prepared = any(getattr(part, sign, None) for part in model.modules() for sign in signs)
    if (plan.compile or 0 < plan.checkpoint_ratio < 1) and not is_prepared:
        yield "the model is not prepared (TunedPlan.prepare)"
