"""`spec.template`: what `plimsoll init` writes loads, and holds every key."""

from __future__ import annotations

import re

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from search_spaces.spec import SweepSpec, commented_template, parse_spec


def fields_of(section: FieldInfo) -> dict[str, FieldInfo]:
    model = section.annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model.model_fields


def test_loads_without_faults_and_changes_no_default() -> None:
    spec = parse_spec(commented_template(), source="template")

    assert spec == SweepSpec.model_validate({"model": "gpt2", "train": {"global_batch": 32}})


def test_loads_with_every_key_uncommented_to_the_same() -> None:
    keys = "|".join(key for field in SweepSpec.model_fields.values() for key in fields_of(field))
    active = re.sub(rf"^  # ((?:{keys}): \S+)$", r"  \1", commented_template(), flags=re.MULTILINE)

    assert parse_spec(active, source="template") == parse_spec(
        commented_template(), source="template"
    )
    assert active.count("#") < commented_template().count("#") - 30


def test_holds_every_key_with_its_description() -> None:
    text = " ".join(line.strip(" #") for line in commented_template().splitlines())

    for field in SweepSpec.model_fields.values():
        for key, entry in fields_of(field).items():
            assert f"{entry.description} {key}: " in text


def test_fits_a_screen() -> None:
    assert max(map(len, commented_template().splitlines())) <= 92
