"""Facts of a model, cached on disk by the content that they follow from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from workers.models.content import cache_folder, content_digest, model_source, save_file


def model_facts(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model; without importing a framework if they are cached.

    Facts of a user's function are not cached on disk, as its code may read anything.

    Raises:
        ModelError: As `describe`.
    """
    return _facts(spec.model_dump_json(), train.model_dump_json())


@lru_cache(maxsize=32)
def _facts(spec_json: str, train_json: str) -> ModelFacts:
    spec = ModelSpec.model_validate_json(spec_json)
    train = TrainSpec.model_validate_json(train_json)
    if ":" in spec.name:
        return _described(spec, train)
    file = _cached_file(spec, train)
    try:
        return _adapter().validate_json(file.read_bytes())
    except (OSError, ValidationError):
        facts = _described(spec, train)
    save_file(file, _adapter().dump_json(facts))
    return facts


def _described(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    from workers.models.load import describe

    return describe(spec, train)


def _cached_file(spec: ModelSpec, train: TrainSpec) -> Path:
    digest = content_digest(
        {
            "model": spec.model_dump(mode="json"),
            "source": model_source(spec),
            "sequence_length": train.sequence_length,
            "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
        }
    )
    return cache_folder("models") / f"{digest}.json"


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[ModelFacts]:
    return TypeAdapter(ModelFacts)
