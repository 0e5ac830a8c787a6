"""User, code and data of a sweep as MLflow shows them: tags and an input of each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.provenance import CodeVersion, DataProfile, LengthBin, Provenance

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

_MOST_FILES = 200  # that are named; a store takes 64 KiB
_SOURCE = {"mlflow.source.name": "plimsoll"}


def source_tags(provenance: Provenance | None) -> dict[str, str]:
    """The tags by which MLflow's page shows user, source and version of a run."""
    if provenance is None:
        return dict(_SOURCE)
    return {
        **_SOURCE,
        "mlflow.user": provenance.user,
        "mlflow.source.type": "JOB" if provenance.is_job else "LOCAL",
        **code_tags(provenance.code),
        **dict(provenance.context),
    }


def job_context(user: str, code: CodeVersion | None, given: Mapping[str, str]) -> str:
    """The `MLFLOW_RUN_CONTEXT` of a job that runs a copy of a folder, which has no `.git`.

    Args:
        user: Who submits it.
        code: What the folder stands at.
        given: Tags that the variable holds where it is submitted; they go before the others.
    """
    return json.dumps({"mlflow.user": user, **code_tags(code), **given})


def code_tags(code: CodeVersion | None) -> dict[str, str]:
    """The tags of a commit; none where there is none."""
    if code is None:
        return {}
    tags = {
        "mlflow.source.git.commit": code.commit,
        "mlflow.source.git.branch": code.branch,
        "mlflow.source.git.repoURL": code.remote,
        "mlflow.source.git.dirty": str(code.modified).lower(),
    }
    return {name: value for name, value in tags.items() if value}


def dataset_input(data: DataProfile) -> DatasetInput:
    """The data set of a run, which MLflow's page shows in the column `Dataset`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    source_type, source = _source(data)
    columns = Schema([ColSpec(Array(DataType.integer), "input_ids")])
    dataset = Dataset(
        name=data.name,
        digest=data.digest,
        source_type=source_type,
        source=json.dumps(source),
        schema=json.dumps({"mlflow_colspec": columns.to_dict()}),
        profile=json.dumps(_profile(data)),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def _source(data: DataProfile) -> tuple[str, dict[str, Any]]:
    """The kind of a source, and what MLflow's page reads of one of that kind."""
    if not data.files:
        return "code", {"tags": _SOURCE}
    return "local", {"uri": data.files[0], "files": data.files[:_MOST_FILES]}


def _profile(data: DataProfile) -> dict[str, Any]:
    profile = {
        "num_rows": data.samples,
        "num_elements": data.tokens,
        "tokens_per_row": {_label(one): one.samples for one in data.histogram},
    }
    return profile | ({"tokenizer": data.tokenizer} if data.tokenizer else {})


def _label(one: LengthBin) -> str:
    return str(one.shortest) if one.shortest == one.longest else f"{one.shortest}-{one.longest}"
