"""A custom resource against its definition, in the order of the API server.

Defaults are filled in, then structure, types and unknown fields are checked, then the keys of
list-maps. A plain JSON Schema run gives wrong answers: it would miss required fields
that have a default, and pass unknown ones. Rules in CEL, which concern fields that `k8s/` does not
use, are left to the API server.
"""

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

CRDS = Path(__file__).parent / "crds"
FILES = {"RayJob": "ray.io_rayjobs.yaml", "RayCluster": "ray.io_rayclusters.yaml"}
FILES["TrainJob"] = "trainer.kubeflow.org_trainjobs.yaml"

_KEPT = ("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems")
_KEPT += ("maxItems", "required", "anyOf", "allOf", "oneOf", "not")


def complaints(resource: dict[str, Any]) -> Iterator[str]:
    """Yields what the API server would refuse about it, each with its path."""
    kind = resource["kind"]
    schema = definition(kind)
    cleaned = copy.deepcopy(resource)
    _fill_defaults(cleaned, schema)
    for error in _validator(kind).iter_errors(cleaned):
        yield f"{_path(error.absolute_path)}: {error.message[:200]}"
    yield from _doubled(cleaned, schema, kind)


@functools.cache
def definition(kind: str) -> dict[str, Any]:
    """The schema of a kind's version v1, or of its only one."""
    crd = yaml.load((CRDS / FILES[kind]).read_text(encoding="utf-8"), yaml.CSafeLoader)
    versions = {version["name"]: version for version in crd["spec"]["versions"]}
    version = versions.get("v1") or next(iter(versions.values()))
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    # what holds for the metadata of every object is written in no definition
    labels = {"type": "object", "additionalProperties": {"type": "string", "pattern": _LABEL}}
    fields = {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": labels}
    schema["properties"]["metadata"] = {"type": "object", "properties": fields}
    return schema


_LABEL = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(_as_json_schema(definition(kind)))


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI as Kubernetes writes it, as JSON Schema, with unknown fields forbidden."""
    out: dict[str, Any] = {name: schema[name] for name in _KEPT if name in schema}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    if "items" in schema:
        out["items"] = _as_json_schema(schema["items"])
    properties = schema.get("properties", {})
    if properties:
        out["properties"] = {name: _as_json_schema(part) for name, part in properties.items()}
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        out["additionalProperties"] = _as_json_schema(more)
    elif properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    return out


def _parts(value: Any, schema: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Key, value and schema of what lies directly below."""
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        for name, below in list(value.items()):
            part = properties.get(name, more if isinstance(more, dict) else None)
            if part is not None:
                yield name, below, part
    elif isinstance(value, list) and "items" in schema:
        for index, below in enumerate(value):
            yield index, below, schema["items"]


def _fill_defaults(value: Any, schema: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if "default" in part:
                value.setdefault(name, copy.deepcopy(part["default"]))
    for _, below, part in _parts(value, schema):
        _fill_defaults(below, part)


def _doubled(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Entries of a list-map that have the same key, such as an environment variable given twice."""
    if isinstance(value, list) and schema.get("x-kubernetes-list-type") == "map":
        names = schema["x-kubernetes-list-map-keys"]
        keys = [json.dumps([entry.get(name) for name in names]) for entry in value]
        yield from (
            f"{path}: {key} twice" for key in sorted({k for k in keys if keys.count(k) > 1})
        )
    for name, below, part in _parts(value, schema):
        yield from _doubled(below, part, f"{path}.{name}")


def _path(parts: Any) -> str:
    return ".".join(str(part) for part in parts) or "."
