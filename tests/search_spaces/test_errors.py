"""Extras of the distribution: the packages that each installs, with their versions."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from search_spaces.errors import DISTRIBUTION, OPTIONAL_PACKAGES, missing_extra
from tests.absent import OPTIONAL

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_what_is_installed_lacks_nothing() -> None:
    installed = metadata.packages_distributions()
    here = [package.module for package in OPTIONAL_PACKAGES if package.module in installed]

    assert [missing_extra(module) for module in here] == [None] * len(here)


def test_the_extra_that_a_sentence_names_installs_the_package() -> None:
    installed_by = {
        package.module: {name_of(text) for text in EXTRAS[package.extra]}
        for package in OPTIONAL_PACKAGES
    }

    assert [m for m, names in installed_by.items() if m not in names] == []


def test_all_is_every_extra_and_the_base_holds_none_of_them() -> None:
    (every,) = EXTRAS["all"]
    named = re.fullmatch(rf"{DISTRIBUTION}\[(.*)\]", every)

    assert PROJECT["name"] == DISTRIBUTION
    assert named is not None
    # transformers imports torchao wherever it is, for a second in each process; torch loads
    # torch_tpu, and fails without a TPU
    left_out = {"all", "dev", "docs", "torchao", "tpu"}
    assert set(named[1].split(",")) == EXTRAS.keys() - left_out
    assert not any("tpu" in text for extra in ("all", "dev") for text in EXTRAS[extra])
    assert not {name_of(text) for text in PROJECT["dependencies"]} & OPTIONAL


def name_of(requirement: str) -> str:
    """Returns the distribution that a requirement names."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()
