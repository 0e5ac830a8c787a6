"""Tasks of models of transformers: as specified, else that of the class in the model's config."""

import inspect
from collections.abc import Sequence
from typing import Any, get_args

import transformers

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec, Task, TextTask

TEXT_TASKS: tuple[TextTask, ...] = get_args(TextTask)
HEADS: dict[Task, Any] = {  # of the tasks that have a class, the first one counts
    "image-text-to-text": transformers.AutoModelForImageTextToText,
    "speech-seq2seq": transformers.AutoModelForSpeechSeq2Seq,
    "ctc": transformers.AutoModelForCTC,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
    "audio-classification": transformers.AutoModelForAudioClassification,
    "zero-shot-image-classification": transformers.AutoModelForZeroShotImageClassification,
}

_USUAL = tuple(HEADS)[:6]  # heads that few architectures have beside each other


def task_of(spec: ModelSpec, config: Any) -> Task:
    """Returns the task of a model: the specification's, else that of the class in `architectures`.

    A configuration without a class has the task of its only usual head.

    Raises:
        ModelError: If the architecture has no head for the task, or if none follows from its class.
    """
    names: Sequence[str] = getattr(config, "architectures", None) or ()
    remote = getattr(config, "auto_map", None)
    if remote is not None:  # the model's own code raises its own error
        own = [task for task, head in HEADS.items() if head.__name__ in remote]
        return spec.task or (own or ["causal-lm"])[0]
    heads = {task: _classes(head, config) for task, head in HEADS.items()}
    tasks = [task for task, classes in heads.items() if classes]
    if spec.task is not None:
        _refuse_other_task(spec, config, tasks)
        return spec.task
    stated = [task for task in tasks if set(names) & {one.__name__ for one in heads[task]}]
    if "causal-lm" in stated and names[0].endswith("ForCausalLM"):
        return "causal-lm"
    if stated:
        return stated[0]
    possible = [task for task in tasks if task != "causal-lm" or not _is_encoder(config, tasks)]
    usual = [task for task in possible if task in _USUAL] or possible
    if not names and len(usual) == 1:
        return usual[0]
    choice = f"set model.task: {' or '.join(possible)}, or " if possible else ""
    name = names[0] if names else f"{config.model_type} without a class in architectures"
    raise function_needed(spec, name, choice)


def function_needed(spec: ModelSpec, name: str, otherwise: str = "") -> ModelError:
    """Makes the error for a class without a batch maker, with its forward's arguments."""
    forward = getattr(getattr(transformers, name, None), "forward", None)
    parameters = inspect.signature(forward).parameters.values() if forward else ()
    arguments = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD][1:]
    taken = f", whose forward takes {', '.join(arguments)}" if arguments else ""
    return ModelError(
        f"Plimsoll makes no batches for {spec.name}, a {name}{taken}:"
        f" {otherwise}give a function of yours as the model, model: mymodel:build, which returns"
        " the module and a maker of its batches (docs/model-and-data.md, Your model)"
    )


def _classes(head: Any, config: Any) -> tuple[Any, ...]:
    if type(config) not in head._model_mapping:
        return ()
    classes = head._model_mapping[type(config)]
    return tuple(classes) if isinstance(classes, list | tuple) else (classes,)


def _refuse_other_task(spec: ModelSpec, config: Any, tasks: list[Task]) -> None:
    if spec.task not in tasks:
        raise ModelError(
            f"{spec.name} ({config.model_type}) has no head for task {spec.task};"
            f" it has one for {' and '.join(tasks) or 'none of the tasks'}"
        )
    if spec.task == "causal-lm" and _is_encoder(config, tasks):
        raise ModelError(
            f"{spec.name} ({config.model_type}) is an encoder: its tokens attend to later tokens."
            " Set model.task: masked-lm, or model.config.is_decoder: true"
        )


def _is_encoder(config: Any, tasks: list[Task]) -> bool:
    return getattr(config, "is_decoder", None) is False and "masked-lm" in tasks
