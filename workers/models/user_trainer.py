"""A user's `transformers.Trainer` as a job, unless no trial can do what it does."""

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback

from search_spaces.errors import ModelError
from search_spaces.specification.trainer_configs.conversion import settings_of
from search_spaces.specification.trainer_configs.document import flattened, tree_of
from search_spaces.specification.trainer_configs.tables import trainers

Callback = TrainerCallback
_BESIDE_THE_STEP = re.compile("^__|eval|predict|log|save|metric|hub|push|card|callback|loader|end$")
_PARTS = ("forward", "_loss_function")  # of a module, where they replace those of its class


def specification(trainer: Trainer) -> dict[str, Any]:
    """Returns the specification of a Trainer's job, which `plimsoll.check` and `plan` take too.

    The Trainer is one of a single process, before `train()`. Its settings become the baseline, and
    weights are drawn anew. Raises PlimsollError if it does what no trial does.
    """
    problems = [*_refusals(trainer)]
    if not problems:
        loader = trainer.get_train_dataloader()
        values, problems = _settings(trainer, loader)
    if problems:
        raise ModelError(
            f"this {type(trainer).__name__} cannot be tuned: {'; '.join(problems)}; a module whose"
            " forward returns your loss can, by plimsoll.tune"
        )
    collate: Any = loader.collate_fn
    if columns := getattr(collate, "signature_columns", None):
        collate.signature_columns = sorted(columns)  # a set orders them anew in each process
    data = DataLoader(loader.dataset, collate_fn=collate)
    return tree_of(values) | {"model": {"name": _builder(trainer)}, "data": data}


def _refusals(trainer: Trainer) -> Iterator[str]:
    kinds, model = type(trainer).__mro__, trainer.model
    names = {*vars(trainer), *chain.from_iterable(map(vars, kinds[: kinds.index(Trainer)]))}
    own = sorted(name for name in names & {*vars(Trainer)} if not _BESIDE_THE_STEP.search(name))
    parts = {name for part in model.modules() for name in _PARTS if name in vars(part)}
    made = trainer.optimizer or trainer.lr_scheduler or trainer.optimizer_cls_and_kwargs
    for holds, words in (
        (own, f"it has its own {', '.join(own)}"),
        (trainer.compute_loss_func, "it has a compute_loss_func"),
        (parts, f"its model has another {', '.join(sorted(parts))} than its class"),
        (made, "it has an optimizer or schedule, passed or from train(), where optim names one"),
        (getattr(model, "is_quantized", False), "its model is quantized"),
        (trainer.train_dataset is None, "it has no train_dataset"),
        (
            trainer.args.world_size > 1,
            "it is one of several processes, where workers start them: make it in one (with fsdp,"
            " by torchrun --nproc-per-node 1)",
        ),
    ):
        if holds:
            yield words


def _settings(trainer: Trainer, loader: Any) -> tuple[dict[str, Any], list[str]]:
    args, steps = trainer.args, trainer.args.max_steps
    if steps < 1:  # Trainer itself refuses data without an end
        epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
        steps = math.ceil(args.num_train_epochs * epoch)
    values = dict(flattened(args.to_dict()))
    values |= {"max_steps": steps, "warmup_steps": args.get_warmup_steps(steps)}
    settings = settings_of(trainers()["TrainingArguments"], values, Path())
    settings.values["train.global_batch"] = trainer.get_total_train_batch_size(args)
    types = {one.dtype for one in trainer.model.parameters() if one.requires_grad}
    if types == {torch.bfloat16} and settings.values.get("train.precision") == "fp32":
        settings.values["train.precision"] = "bf16"
    return settings.values, settings.impossible


def _builder(trainer: Trainer) -> Any:
    model: Any = trainer.model
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # of peft
    adapters = model.peft_config[model.active_adapter] if base is not model else None
    weights = {
        name: (one.shape, one.dtype, one.requires_grad) for name, one in model.named_parameters()
    }
    make: Any = trainer.model_init
    if make is not None:
        parameters = inspect.signature(make).parameters  # none, or a trial of Trainer's own search
        make, adapters = partial(make, *[None] * len(parameters)), None
    elif not isinstance(base, PreTrainedModel):
        raise ModelError(f"no trial can build its {type(base).__name__}: give it a model_init")
    kind: Any = type(base)
    make = make or partial(kind, copy.deepcopy(base.config))
    function: Any = partial(_built, make, adapters, weights)
    with torch.device("meta"):
        function()
    function.__name__ = type(base).__name__
    return function


def _built(make: Callable[[], Any], adapters: Any, weights: dict[str, Any]) -> Any:
    module = make()
    if adapters is not None:
        from peft import get_peft_model

        module = get_peft_model(module, adapters)
    shapes = {(name, one.shape) for name, one in module.named_parameters()}
    if changed := shapes ^ {(name, shape) for name, (shape, *_) in weights.items()}:
        raise ModelError(
            f"its {type(module).__name__} has another {min(changed)[0]} than its class builds: give"
            " it a model_init that makes the same change"
        )
    for name, weight in module.named_parameters():
        _, dtype, is_trained = weights[name]
        weight.requires_grad_(is_trained).data = weight.data.to(dtype)
    return module
