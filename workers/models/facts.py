"""Facts of a model, cached on disk by the content that they follow from."""

import contextlib
import hashlib
import resource
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import ModelError
from search_spaces.facts import ModelFacts, StepFindings, with_findings
from search_spaces.presets.catalogue import preset_config, preset_names
from search_spaces.safety.files import is_file, is_folder, with_home
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.disk_cache import cache_folder, content_digest, save_file
from workers.models.isolation import run_apart
from workers.models.trust import check_trusted, is_hub_id, module_specs
from workers.models.user_code import importable_from_cwd

DESCRIBE_SECONDS = 120.0  # imports, a build on the meta device, and probes of small ones
PROBE_SECONDS = 90.0  # two builds of a model, and the passes of `step_probe`
_REFUSED = b"refused: "


def model_source(spec: ModelSpec) -> Any:
    """Returns the content that defines a model, as JSON values.

    Raises:
        ModelError: If there is no such model.
    """
    name = spec.name
    if ":" in name:  # a pickle has its content's digest in its name, and no module
        return dict(_python_files(name.rpartition(":")[0]))
    if name in preset_names():
        return preset_config(name)
    folder = with_home(name)
    if is_folder(folder):
        return {
            file.name: _hash(file)
            for file in sorted((*folder.glob("*.json"), *folder.glob("*.py")))
            if is_file(file)
        }
    from huggingface_hub import try_to_load_from_cache

    with contextlib.suppress(ValueError):  # no id of the Hub, as `raw_config` will say
        config = None
        if name.count("/") <= 1:
            config = try_to_load_from_cache(name, "config.json", revision=spec.revision)
        if isinstance(config, str):
            return _hash(Path(config))
    from workers.models.config_source import raw_config

    return raw_config(spec)


def _python_files(module: str) -> Iterator[tuple[str, str]]:
    """Yields the module's file and those in its folder, which it may import."""
    with importable_from_cwd():
        specs = tuple(module_specs(module))
    if len(specs) <= module.count(".") or not specs[-1].has_location:
        return
    for file in sorted(Path(str(specs[-1].origin)).parent.glob("*.py")):
        yield file.name, _hash(file)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def pinned(spec: ModelSpec, earlier: str | None) -> ModelSpec:
    """Returns the model with the commit of its Hub id; others are returned as they are.

    Args:
        spec: The model.
        earlier: The commit that the study's first sweep found; None for a new study. A model
            without a revision keeps to it.

    Raises:
        ModelError: If there is no such model.
    """
    if not is_hub_id(spec):
        return spec
    if spec.revision is None and earlier is not None:
        return spec.model_copy(update={"revision": earlier})
    from workers.models.config_source import hub_commit

    commit = hub_commit(spec)
    return spec if commit is None else spec.model_copy(update={"revision": commit})


def model_facts(spec: ModelSpec, train: TrainSpec, *, apart: bool = True) -> ModelFacts:
    """Returns the facts of a model, from the cache on disk if it has been described before.

    Facts of a user's function are not cached on disk, as its code may read anything. `apart`
    describes the model in a process of its own, and imports no framework here.

    Raises:
        ModelError: As `describe`, and if that process takes too long or dies.
    """
    return _facts(spec.model_dump_json(), train.model_dump_json(), apart)


@lru_cache(maxsize=32)
def _facts(spec_json: str, train_json: str, apart: bool) -> ModelFacts:
    spec = ModelSpec.model_validate_json(spec_json)
    train = TrainSpec.model_validate_json(train_json)
    file = None if ":" in spec.name or ":" in train.optimizer else _cached_file(spec, train)
    if file is not None:
        with contextlib.suppress(OSError, ValidationError):
            return _adapter().validate_json(file.read_bytes())
    if not apart:
        from workers.models.load import describe

        return describe(spec, train)
    facts = _described_apart(spec, train)
    if file is not None:
        save_file(file, _adapter().dump_json(facts))
    return facts


def _described_apart(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    for name in (spec.name, train.optimizer):
        module, is_function, _ = name.rpartition(":")
        if is_function:
            with importable_from_cwd():
                check_trusted(module)
    request = {"model": spec.model_dump(mode="json"), "train": train.model_dump(mode="json")}
    facts = _adapter().validate_json(run_apart(describe_to_json, request, DESCRIBE_SECONDS))
    if facts.vocab_size is not None:
        return facts
    try:
        answer = run_apart(probe_to_json, request, PROBE_SECONDS)
    except ModelError as error:  # out of time or memory, which says nothing about the model
        return with_findings(facts, StepFindings(not_probed=str(error)))
    if answer.startswith(_REFUSED):
        raise ModelError(answer.removeprefix(_REFUSED).decode())
    return _adapter().validate_json(answer)


def describe_to_json(request: Any) -> bytes:
    """Describes the model of a request of `model_facts`, in the process that may run its code."""
    import torch

    from workers.models.load import describe

    torch.set_num_threads(1)  # on small tensors, threads spin ten times as long
    spec = ModelSpec.model_validate(request["model"])
    train = TrainSpec.model_validate(request["train"])
    return _adapter().dump_json(describe(spec, train))


def probe_to_json(request: Any) -> bytes:
    """Describes and probes a model likewise, in half of the memory that is free."""
    from workers.models.function_probe import with_function_findings
    from workers.models.load import describe

    limit = psutil.virtual_memory().available // 2 + psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    spec = ModelSpec.model_validate(request["model"])
    train = TrainSpec.model_validate(request["train"])
    try:
        return _adapter().dump_json(with_function_findings(describe(spec, train), spec, train))
    except ModelError as error:
        return _REFUSED + str(error).encode()


_OPTIMIZER_KEYS = ("optimizer", "momentum", "weight_decay")  # that its bytes depend on


def _cached_file(spec: ModelSpec, train: TrainSpec) -> Path:
    digest = content_digest(
        {
            "model": spec.model_dump(mode="json"),
            "source": model_source(spec),
            "sequence_length": train.sequence_length,
            "optimizer": {name: getattr(train, name) for name in _OPTIMIZER_KEYS},
            "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
            "precision": train.precision if train.method == "lora" else None,  # `lora.base` unset
        }
    )
    return cache_folder("models") / f"{digest}.json"


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[ModelFacts]:
    return TypeAdapter(ModelFacts)
