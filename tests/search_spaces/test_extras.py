"""Each optional package that is missing is one sentence, with the command that brings it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from search_spaces.extras import DISTRIBUTION, OPTIONAL_PACKAGES, extra_lack
from tests.absent import OPTIONAL, environment_without

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# what is done in one process without the module; in this order, since a package that could be
# imported stays so
DOORS = {
    "optuna": "import orchestrator.study",
    "sqlalchemy": "import orchestrator.study",
    "psycopg": """
from orchestrator.study.databases import engine_options
engine_options("postgresql://db/studies")
""",
    "mlflow": """
from orchestrator.mlflow_tracking import Pages, ui_command
ui_command(spec, Pages(trials="http://127.0.0.1:5000"))
""",
    "boto3": """
from orchestrator.mlflow_tracking.store import check_artifacts
check_artifacts("file:///tmp")
check_artifacts("s3://bucket/folder")
""",
    "ray": """
from orchestrator.ray_cluster import connected
with connected(spec):
    pass
""",
    "peft": """
from workers.models import build_fake, describe
from search_spaces.spec.train_section import LoraSpec
describe(spec.model, spec.train.model_copy(update={"method": "lora", "lora": LoraSpec()}))
""",
    "deepspeed": """
from workers.parallel.zero_features import deepspeed_lack
raise UserError(deepspeed_lack())
""",
    "bitsandbytes": """
from workers.optimizers import eight_bit_lack
raise UserError(eight_bit_lack())
""",
}
SENTENCES = {
    "optuna": "Optuna is not installed; `pip install 'plimsoll-tune[ray]'` brings it",
    "sqlalchemy": "SQLAlchemy is not installed; `pip install 'plimsoll-tune[ray]'` brings it",
    "psycopg": "psycopg is not installed; `pip install 'plimsoll-tune[postgres]'` brings it",
    "mlflow": "MLflow is not installed; `pip install 'plimsoll-tune[mlflow]'` brings it",
    "boto3": "boto3 is not installed; `pip install 'plimsoll-tune[s3]'` brings it",
    "ray": "Ray is not installed; `pip install 'plimsoll-tune[ray]'` brings it",
    "peft": "PEFT is not installed; `pip install 'plimsoll-tune[lora]'` brings it",
    "deepspeed": "DeepSpeed is not installed; `pip install 'plimsoll-tune[deepspeed]'` brings it",
    "bitsandbytes": "bitsandbytes is not installed; `pip install 'plimsoll-tune[8bit]'` brings it",
}
SCRIPT = f"""
import json, sitecustomize
from search_spaces.errors import UserError
from search_spaces.spec.schema import SweepSpec

spec = SweepSpec.model_validate({{"model": {{"name": "gpt2"}}, "train": {{"global_batch": 1}}}})
sentences = {{}}
for module, door in {DOORS}.items():
    sitecustomize.ABSENT.clear()
    sitecustomize.ABSENT.add(module)
    try:
        exec(door)
    except UserError as error:
        sentences[module] = str(error)
print(json.dumps(sentences))
"""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each feature says without its package, by the package's module."""
    environment = environment_without((), tmp_path_factory.mktemp("site"))
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("module", SENTENCES)
def test_a_feature_without_its_package_is_one_sentence(
    module: str, sentences: dict[str, str]
) -> None:
    assert sentences[module] == SENTENCES[module]


def test_each_optional_package_has_a_sentence_and_a_test() -> None:
    modules = {package.module for package in OPTIONAL_PACKAGES}

    assert modules == SENTENCES.keys()
    assert modules | {"greenlet"} == OPTIONAL  # which Optuna takes if it is there


def test_what_is_installed_lacks_nothing() -> None:
    installed = metadata.packages_distributions()
    here = [package.module for package in OPTIONAL_PACKAGES if package.module in installed]

    assert [extra_lack(module) for module in here] == [None] * len(here)


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
    assert set(named[1].split(",")) == EXTRAS.keys() - {"all", "dev"}
    assert not {name_of(text) for text in PROJECT["dependencies"]} & OPTIONAL


@pytest.mark.parametrize(
    ("package", "capped"),
    [
        ("ray", ">=2.60,<2.61"),
        ("deepspeed", ">=0.19.8,<0.20"),
        ("mlflow", ",<4"),
        ("torch", ",<2.15"),
    ],
)
def test_packages_whose_inside_is_used_have_an_upper_bound(package: str, capped: str) -> None:
    every = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    (requirement,) = {text for text in every if name_of(text) == package}

    assert requirement.endswith(capped)


def name_of(requirement: str) -> str:
    """The distribution that a requirement names."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()
