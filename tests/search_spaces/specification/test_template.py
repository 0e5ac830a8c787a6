"""`spec.template`: the output of `plimsoll init` is valid and has every key."""

import re
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from search_spaces.specification.load import parse_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import section_of
from search_spaces.specification.template import commented_template


def keys_of(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yields every key with a value, including those of nested sections."""
    for key, field in section.model_fields.items():
        below = section_of(field)
        if below is None:
            yield key, field
        else:
            yield from keys_of(below)


def test_loads_without_faults_and_changes_no_default() -> None:
    spec = parse_spec(commented_template(), source="template")

    assert spec == SweepSpec.model_validate({"model": "gpt2", "train": {"global_batch": 32}})


def test_loads_with_every_key_uncommented_to_the_same() -> None:
    keys = "|".join(key for key, _ in keys_of(SweepSpec))
    text = commented_template()
    active = re.sub(rf"^( +)# ((?:{keys}): \S.*)$", r"\1\2", text, flags=re.MULTILINE)

    assert parse_spec(active, source="template") == parse_spec(text, source="template")
    assert not re.search(rf"^ +# (?:{keys}): ", active, flags=re.MULTILINE)
    assert "    rank: 8" in active.splitlines()


def test_holds_every_key_with_its_description() -> None:
    text = " ".join(line.strip(" #") for line in commented_template().splitlines())

    for key, field in keys_of(SweepSpec):
        assert f"{field.description} {key}: " in text


def test_fits_a_screen() -> None:
    assert max(map(len, commented_template().splitlines())) <= 92
