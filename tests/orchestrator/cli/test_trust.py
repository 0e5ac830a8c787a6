"""A specification or a study of somebody else's runs no code that the user does not name."""

import json
from pathlib import Path

import pytest
import yaml

from orchestrator.core.reasons import Sampled
from orchestrator.study.reader import stored_job
from orchestrator.study.study import Study, check_study
from search_spaces.errors import StudyError
from search_spaces.facts import ModelFacts, Understanding, planned_cluster
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import ModelSpec
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.studies import TREE, a_plan, a_study
from tests.orchestrator.records import make_record, make_space
from tests.outcomes import make_measured
from workers.models.trust import TRUST_VARIABLE

OUTCOMES = ((a_plan(), make_measured(20.0, 0.3)), (a_plan(micro_batch=4), make_measured(40.0, 0.5)))
PLANTED = "open('ran', 'w')\ndef make(): ...\n"
FACTS = ModelFacts(
    name="planted_net:make",
    architecture="Net",
    parameters=1000,
    blocks=2,
    attentions=("sdpa",),
    packing=(),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a user who trusts no module by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRUST_VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def _study_with_code(here: Path, *, facts: ModelFacts | None) -> None:
    """Makes a study whose specification names a module of the current directory."""
    a_study(OUTCOMES)
    saved = here / "plimsoll-runs" / "demo" / "spec.yaml"
    tree = yaml.safe_load(saved.read_text())
    tree["model"] = {"name": "planted_net:make"}
    (here / "planted_net.py").write_text(PLANTED)
    if facts is not None:
        spec = load_spec(saved)
        understanding = Understanding(
            data=None, model=facts, cluster=planned_cluster(spec, 1), ranks=1
        )
        Study(spec, "demo", make_space(spec)).keep_understanding(understanding)
    saved.write_text(yaml.safe_dump(tree))


@pytest.mark.parametrize("words", ["check", "plan", "tune", "trial --plan plan.json"])
def test_s1_no_command_runs_what_a_specification_names(
    here: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    model = {"name": "os:system", "config": {"command": f"touch {here}/ran"}}
    (here / "sweep.yaml").write_text(yaml.safe_dump({**TREE, "model": model}))
    (here / "plan.json").write_text(json.dumps(a_plan(data=1, accumulation=16).as_dict()))
    name, *options = words.split()

    code, said = command(capsys, name, "sweep.yaml", *options)

    assert (code, "os is not run: " in said) == (2, True), said
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        *("report", "report --html", "explain", "explain --trial 0", "export --format torchrun"),
        *("report --json", "explain --plan micro_batch=2"),
    ],
)
def test_s1_reading_a_study_runs_none_of_its_code(
    here: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    _study_with_code(here, facts=FACTS)

    code, said = command(capsys, *words.split())

    forecasts_alone = words == "explain --plan micro_batch=2"
    assert code == (2 if forecasts_alone else 0), said
    assert ("does not run its code" in said) == words.startswith("explain")
    assert not (here / "ran").exists()
    if words.startswith("export"):
        folder = here / "demo-torchrun"
        assert (folder / "inputs" / "code" / "planted_net.py").read_text() == PLANTED


def test_s1_without_facts_in_the_study_an_export_says_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _study_with_code(here, facts=None)

    code, said = command(capsys, "export")

    assert (code, "does not record what model planted_net:make is" in said) == (2, True), said
    assert not (here / "ran").exists()


def test_s6_a_study_refuses_another_commit_of_its_model(here: Path) -> None:
    spec = load_spec(a_study(OUTCOMES))
    at = {
        commit: spec.model_copy(update={"model": ModelSpec(name="team/net", revision=commit * 40)})
        for commit in "ab"
    }
    study = Study(at["a"], "hub", make_space(spec))
    study.tell(make_record(study.ask(OUTCOMES[0][0], Sampled(sampler="random")), *OUTCOMES[0]))

    assert stored_job(at["a"], "hub")["model"]["revision"] == "a" * 40
    check_study(at["a"], "hub")
    with pytest.raises(StudyError, match=r"another job \(model\.revision changed\)"):
        check_study(at["b"], "hub")


@pytest.mark.thorough
def test_a_module_that_the_user_names_runs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "named_net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Linear):\n    def forward(self, input):\n"
        "        return super().forward(input).square().mean()\n"
        "def make():\n    return Net(2, 2), lambda rows: {'input': torch.ones(len(rows), 2)}\n"
    )
    work = here / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(elsewhere))
    tree = {**TREE, "model": {"name": "named_net:make"}, "data": {}, "space": {}}
    (work / "sweep.yaml").write_text(yaml.safe_dump(tree))

    code, said = command(capsys, "check", "sweep.yaml")
    trusted = command(capsys, "check", "sweep.yaml", "--trust-module", "named_net")

    assert (code, "--trust-module named_net" in said) == (2, True)
    assert trusted[0] == 0, trusted
    assert "named_net:make: Net, 0 blocks, 6 parameters trained" in " ".join(trusted[1].split())
