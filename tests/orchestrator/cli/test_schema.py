"""`plimsoll schema` prints the schema."""

import json

import jsonschema
import pytest

from orchestrator.cli import main
from orchestrator.cli.result import JSON_VERSION
from search_spaces.specification.json_schema import json_schema
from search_spaces.trial import outcome_to_json
from tests.orchestrator.cli.commands import command
from tests.outcomes import every_outcome


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["schema"])

    assert caught.value.code in (0, None)
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_outcomes_of_trials_obey_their_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(command(capsys, "schema", "--of", "trial")[1])

    for outcome in every_outcome():
        document = {"kind": "trial", "version": JSON_VERSION, "result": outcome_to_json(outcome)}
        jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "result": {"kind": "measured"}}, schema)


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = command(capsys, "schema", "--of", "nothing")

    assert code == 2
    assert "--of nothing is not a kind of document: give one of check, plan, report" in said
