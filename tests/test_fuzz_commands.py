"""Random command lines and specifications in this process: none ends with a traceback (R10-R12)."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.cli.app import app
from tests.fuzzing.grammar import COMMANDS, KEYS, command_lines, specifications
from tests.fuzzing.run import OddFolder, odd_folder, run_line


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddFolder]:
    with odd_folder(tmp_path_factory.mktemp("fuzz")) as folder:
        yield folder


def spec(**keys: str) -> bytes:
    sections = {"model": "gpt2", "train": "{global_batch: 8}", **keys}
    return "\n".join(f"{name}: {value}" for name, value in sections.items()).encode()


@given(words=command_lines(), specification=st.none() | specifications())
@example(words=["check", ""], specification=spec(cluster="{memory_gib: 1.0e300}"))
@example(words=["check", ""], specification=spec(model="x" * 1000))
@example(words=["check", ""], specification=spec(model="~nobody/there"))
@example(words=["check", ""], specification=spec(model="."))  # with a zero.json
@example(words=["check", ""], specification=spec(data="{files: [pipe]}"))
@example(words=["check", ""], specification=spec(data='{files: ["a\\0b"]}'))
@example(words=["trial", "missing.yaml", "--plan", "/dev/zero"], specification=None)
@example(words=["init", "é" * 200], specification=None)
@example(words=["check", "deep.json"], specification=None)
@example(words=["report", "demo", "--out", "pipe"], specification=None)
@settings(
    max_examples=max(100, settings.default.max_examples),  # 300 in the thorough run
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_input_ends_with_a_traceback_or_not_at_all(
    words: list[str], specification: bytes | None, odd: OddFolder
) -> None:
    ending = run_line(odd, words, specification)

    assert not ending.fault, ending.fault


def test_the_grammar_knows_all_commands_and_keys() -> None:
    commands = {one.callback.__name__ for one in app.registered_commands if one.callback}

    # these take nothing that others do not; a `doctor` asks the machine
    assert commands - set(COMMANDS) == {"sync", "schema", "mcp", "doctor"}
    assert {"model", "train.global_batch", "cluster.memory_gib", "study.storage"} <= set(KEYS)
