"""The specification as a JSON Schema: what editors complete and check YAML by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.spec.schema import SweepSpec

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SECTIONS = "#/$defs/"


def json_schema() -> dict[str, Any]:
    """The schema of a specification as users write it.

    Beside what pydantic makes of the sections: `model: gpt2` is a model, a section that holds
    nothing is one at its defaults, and a list of values to search holds one at least. What needs
    several keys at once, such as a price for `samples_per_price`, is for `plimsoll check` to say.
    """
    made: dict[str, Any] = _plain(SweepSpec.model_json_schema())
    definitions = made["$defs"]
    for section in (made, *definitions.values()):
        section["properties"] = {
            key: told if key in section.get("required", ()) else _or_nothing(told, definitions)
            for key, told in section["properties"].items()
        }
    made["properties"]["train"]["description"] = definitions["TrainSpec"]["description"]
    made["properties"]["model"] = {
        "anyOf": [{"type": "string", "minLength": 1}, {"$ref": f"{_SECTIONS}ModelSpec"}],
        "description": definitions["ModelSpec"]["description"],
    }
    for told in definitions["SpaceSpec"]["properties"].values():
        told["anyOf"][0]["minItems"] = 1
    definitions["DataSpec"]["properties"]["lengths"]["propertyNames"] = {
        "pattern": "^[1-9][0-9_]*$"
    }
    return {"$schema": DRAFT, "title": "Plimsoll specification", **made}


def _or_nothing(told: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A key of a section; one that is a section itself may stand without anything below it."""
    if "$ref" not in told:
        return told
    words = told.get("description") or definitions[told["$ref"].removeprefix(_SECTIONS)].get(
        "description", ""
    )
    return {"anyOf": [{"$ref": told["$ref"]}, {"type": "null"}], "description": words}


def _plain(told: Any) -> Any:
    """Without the titles, which repeat the keys."""
    if isinstance(told, dict):
        return {
            key: {name: _plain(value) for name, value in below.items()}
            if key in ("properties", "$defs")
            else _plain(below)
            for key, below in told.items()
            if key != "title"
        }
    return [_plain(each) for each in told] if isinstance(told, list) else told
