"""JSON Schema of the specification, from which editors complete and check it."""

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from search_spaces.specification.schema import SweepSpec

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SECTIONS = "#/$defs/"


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles of keys, which repeat them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a specification as users write it.

    It extends pydantic's schema of the sections: `model: gpt2` and `data: train.jsonl` are valid,
    an empty section has its defaults, and a list of values to search has at least one. Constraints
    between keys, such as a price for `samples_per_price`, are left to `plimsoll check`.
    """
    schema = SweepSpec.model_json_schema(schema_generator=_Untitled)
    definitions = schema["$defs"]
    for section in (schema, *definitions.values()):
        section["properties"] = {
            key: value if key in section.get("required", ()) else _nullable(value, definitions)
            for key, value in section["properties"].items()
        }
    schema["properties"]["train"]["description"] = definitions["TrainSpec"]["description"]
    properties, name = schema["properties"], {"type": "string", "minLength": 1}
    files = definitions["DataSpec"]["properties"]["files"]
    files["anyOf"] = [name, {"type": files.pop("type"), "items": files.pop("items")}]
    properties["data"]["anyOf"] += files["anyOf"]
    properties["model"] = {
        "anyOf": [name, {"$ref": f"{_SECTIONS}ModelSpec"}],
        "description": definitions["ModelSpec"]["description"],
    }
    definitions["DataSpec"]["properties"]["lengths"]["propertyNames"] = {
        "pattern": "^[1-9][0-9_]*$"
    }
    return {"$schema": DRAFT, "title": "Plimsoll specification", **schema}


def _nullable(value: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" not in value:
        return value
    section = definitions[value["$ref"].removeprefix(_SECTIONS)]
    description = value.get("description") or section.get("description", "")
    return {"anyOf": [{"$ref": value["$ref"]}, {"type": "null"}], "description": description}
