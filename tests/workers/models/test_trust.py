"""A specification names code and cannot decide that it runs; a driver runs none of it itself."""

import os
import sys
from pathlib import Path

import pytest

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models import facts, isolation
from workers.models.facts import model_facts
from workers.models.isolation import run_apart
from workers.models.load import describe
from workers.models.trust import TRUST_VARIABLE, check_trusted, trust_modules

TRAIN = TrainSpec(global_batch=4)
CODE = """
import os, sys, time
from os import system
import torch
from torch import nn

def make(mark=""):
    if mark:
        open(mark, "w").write(str(os.getpid()))
    print("said by the model")
    return Net(2, 2), lambda numbers: {"input": torch.ones(len(numbers), 2)}

class Net(nn.Linear):
    def forward(self, input):
        return super().forward(input).mean()

def exits():
    os._exit(0)

def sleeps():
    time.sleep(600)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of the user's, who trusts nothing else."""
    monkeypatch.setenv(TRUST_VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trusted_net.py").write_text(CODE)
    for name in ("trusted_net", "elsewhere_net", "planted_net"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def _ran(here: Path) -> ModelSpec:
    return ModelSpec(name="os:system", config={"command": f"touch {here}/ran"})


def test_s1_the_standard_library_is_no_model(here: Path) -> None:
    for look in (describe, model_facts):
        with pytest.raises(ModelError, match=r"os is not run: .* trust it with --trust-module os"):
            look(_ran(here), TRAIN)

    assert not (here / "ran").exists()


@pytest.mark.parametrize("module", ["numpy", "torch.hub", "posix", "subprocess", "workers.api"])
def test_s1_installed_modules_need_a_word_of_the_user(here: Path, module: str) -> None:
    with pytest.raises(ModelError, match="is not a file of yours"):
        check_trusted(module)

    trust_modules((module.partition(".")[0],))
    check_trusted(module)


def test_s1_what_a_trusted_module_imports_is_not_trusted_with_it(here: Path) -> None:
    model = ModelSpec(name="trusted_net:system", config={"command": f"touch {here}/ran"})

    with pytest.raises(ModelError, match="posix is not run"):
        describe(model, TRAIN)
    assert not (here / "ran").exists()


def test_s1_links_and_environments_below_the_folder_are_not_the_users(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "elsewhere_net.py"
    elsewhere.write_text(CODE)
    (here / "elsewhere_net.py").symlink_to(elsewhere)
    (here / ".venv" / "site-packages").mkdir(parents=True)
    (here / ".venv" / "site-packages" / "planted_net.py").write_text(CODE)
    sys.path[:0] = [str(here), str(here / ".venv" / "site-packages")]
    try:
        for module in ("elsewhere_net", "planted_net"):
            with pytest.raises(ModelError, match=f"{module} is not run"):
                check_trusted(module)
        check_trusted("trusted_net")
        check_trusted("there_is_none")  # its import says so
    finally:
        del sys.path[:2]


def test_s1_a_driver_describes_a_users_model_in_another_process(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    isolation._forks.close()  # the next one prints to what is captured now
    found = model_facts(
        ModelSpec(name="trusted_net:make", config={"mark": str(here / "mark")}), TRAIN
    )

    assert (found.architecture, found.parameters) == ("Net", 6)
    assert int((here / "mark").read_text()) != os.getpid()
    assert "trusted_net" not in sys.modules
    out, err = capfd.readouterr()
    assert out == ""
    assert set(err.splitlines()) == {"said by the model"}  # more than once: it is probed as well


def test_s1_code_that_ends_its_process_or_never_ends_is_a_fault_of_the_model(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"ended the process that ran it, with status 0"):
        model_facts(ModelSpec(name="trusted_net:exits"), TRAIN)
    monkeypatch.setattr(facts, "DESCRIBE_SECONDS", 1.0)
    with pytest.raises(ModelError, match=r"took longer than 1 s and was ended"):
        model_facts(ModelSpec(name="trusted_net:sleeps"), TRAIN)


def test_an_error_of_the_other_process_is_raised_here(here: Path) -> None:
    request = {"model": {"name": "trusted_net:mak"}, "train": TRAIN.model_dump(mode="json")}

    with pytest.raises(ModelError, match=r"has no function mak, did you mean make\?"):
        run_apart(facts.describe_to_json, request, 60.0)
