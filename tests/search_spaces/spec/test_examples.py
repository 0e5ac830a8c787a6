"""What is shipped to be copied works as it stands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.presets import preset_names
from search_spaces.spec import load_spec

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_loads_and_names_a_preset(path: Path) -> None:
    assert load_spec(path).model.name in preset_names()


def test_the_demo_keeps_to_what_it_promises() -> None:
    spec = load_spec(EXAMPLES / "demo.yaml")

    assert spec.budget.trials >= 24
    assert (spec.cluster.device, spec.cluster.workers) == ("cpu", 2)
    assert spec.memory_limit_bytes is not None
    assert spec.data.files == ("examples/data/topics.txt",)


def test_the_demo_text_is_english_paragraphs_of_many_lengths(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "demo_text.py", tmp_path)

    for _ in range(2):  # the second time it finds its work done
        subprocess.run(
            [sys.executable, "demo_text.py"],
            cwd=tmp_path,
            check=True,
            timeout=60,
            capture_output=True,
        )

    text = (tmp_path / "data" / "topics.txt").read_text(encoding="utf-8")
    lengths = {len(paragraph.split()) for paragraph in text.split("\n\n")}
    assert len(text) > 300_000
    assert len(lengths) > 50
    assert " the " in text
