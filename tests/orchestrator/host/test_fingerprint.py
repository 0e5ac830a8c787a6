"""Facts about this machine."""

import json
from importlib import metadata

from orchestrator.host import package_versions, system_facts


def test_versions_are_those_installed() -> None:
    versions = dict(package_versions())

    assert versions["pydantic"] == metadata.version("pydantic")
    assert list(versions) == sorted(versions)
    assert set(versions) <= set(dict(package_versions(every=True)))


def test_facts_are_json_values() -> None:
    facts = system_facts()

    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu"]
    assert facts["memory_gib"] > 0
