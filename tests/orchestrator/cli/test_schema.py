"""`plimsoll schema` prints the schema."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli import main
from search_spaces.specification.json_schema import json_schema


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["schema"])

    assert caught.value.code in (0, None)
    assert json.loads(capsys.readouterr().out) == json_schema()
