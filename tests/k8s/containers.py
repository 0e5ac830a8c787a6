"""Environment and commands of a rendered pod's container, for running them on this machine."""

import json
import re
from typing import Any

import yaml

from tests.k8s.rendering import Resource


def environment(
    container: dict[str, Any], resources: list[Resource], secrets: list[Resource]
) -> dict[str, str]:
    """Its variables, with those out of ConfigMaps and Secrets, as the kubelet sets them."""
    data = {
        (one["kind"], one["metadata"]["name"]): {**one.get("data", {}), **one.get("stringData", {})}
        for one in [*resources, *secrets]
    }
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                variables |= data[kind, source[field]["name"]]
    for variable in container.get("env", ()):
        value = variable.get("value")
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if chosen := variable.get("valueFrom", {}).get(field):
                value = data[kind, chosen["name"]][chosen["key"]]
        variables[variable["name"]] = value
    return variables


def command_line(container: dict[str, Any], variables: dict[str, str]) -> list[str]:
    """Its command and arguments, with `$(NAME)` replaced as Kubernetes does."""
    words = [*container.get("command", ()), *container.get("args", ())]
    return [
        re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), word) for word in words
    ]


def submitter_script(job: dict[str, Any], *, address: str, submission: str) -> str:
    """Returns what the operator has the submitter's bash run, once the head answers.

    Source: `BuildJobSubmitCommand` in `ray-operator/controllers/ray/common/job.go` of KubeRay; what
    is quoted there, and what is not, is here too.
    """
    words = ["if ! ray job status --address", address, submission, ">/dev/null 2>&1 ; then"]
    words += ["ray job submit --address", address, "--no-wait"]
    if runtime := yaml.safe_load(job.get("runtimeEnvYAML", "")):
        words += ["--runtime-env-json", _go_quoted(json.dumps(runtime, separators=(",", ":")))]
    if metadata := job.get("metadata"):
        words += ["--metadata-json", _go_quoted(json.dumps(metadata, separators=(",", ":")))]
    words += ["--submission-id", submission, "--", job["entrypoint"].strip(), ";", "fi", ";"]
    words += ["ray job logs --address", address, "--follow", submission]
    return " ".join(words)


def _go_quoted(text: str) -> str:
    """Quotes plain text as Go's strconv.Quote does: for a reader of Go, which bash is not."""
    return json.dumps(text, ensure_ascii=False)
