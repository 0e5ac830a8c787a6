"""`load_best`: the best plan of a study or a folder, and the example that trains with it."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from plimsoll import load_best
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts
from search_spaces.rules.base import RuleContext
from search_spaces.settings.export_manifest import SPEC_FILE
from search_spaces.settings.trainers import trainer_table
from search_spaces.space import build_space
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import GIB, StudySpec
from tests.commands import run_command
from tests.orchestrator.cli.test_sync import swept
from tests.orchestrator.export.folders import ROOT, taken_of
from tests.workers.values import LLAMA, a_plan
from workers.models.load import build_whole, describe

TRAINABLE = load_spec(ROOT / "examples" / "trainer.yaml")
KEPT = Path(StudySpec().folder) / "demo" / SPEC_FILE  # the specification of the sweep


def test_it_is_the_answer_of_the_latest_sweep_or_any_trial_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no sweep has run"):
        load_best()
    spec = swept(model=LLAMA)  # trial 1 ran out of memory, trial 2 is best

    best, first = load_best(), load_best(KEPT, trial=0)

    assert (best.study, best.trial, first.trial) == ("demo", 2, 0)
    assert (best.samples_per_second.value, first.samples_per_second.value) == (39.5, 20.0)
    assert best.spec.model == spec.model
    assert best.plan.global_batch == spec.train.global_batch
    with pytest.raises(UserError, match="trial 1 of study demo ended with out of memory"):
        load_best(trial=1)


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> str:
    """Returns the output of an example on two ranks, with the best plan of a demo sweep."""
    swept(model=TRAINABLE.model.model_dump(), **sections)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2"]
    ran = run_command([*torchrun, str(ROOT / "examples" / name), str(KEPT)], seconds=800)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_examples_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = run_example("own_loop.py", monkeypatch)
    losses = [float(line.split()[-1]) for line in told.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]

    (tmp_path / "trainer").mkdir()
    monkeypatch.chdir(tmp_path / "trainer")
    space = TRAINABLE.space.model_dump(exclude_unset=True)
    told = run_example("hf_trainer.py", monkeypatch, space=space)
    assert len(re.findall(r"'loss': '?[0-9.]+", told)) == 4
    assert "train_samples_per_second" in told


def test_trainer_can_say_each_plan_of_its_example() -> None:
    facts = describe(TRAINABLE.model, TRAINABLE.train)
    cluster = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=GIB)
    around = RuleContext(spec=TRAINABLE, model=facts, cluster=cluster)

    plans = build_space(around, 2).candidates

    assert len({plan.checkpoint_ratio for plan in plans}) == 3
    for plan in plans:
        assert trainer_table()["hf-trainer"].refusals(plan, TRAINABLE, facts, "cpu") == [], plan


def test_trainers_arguments_are_of_the_plan_and_of_the_user(tmp_path: Path) -> None:
    what = taken_of(a_plan(engine="deepspeed", zero_stage=2, checkpoint_ratio=1.0))
    write_bundle(export_bundle(what), what, tmp_path / "zero")
    told = load_best(tmp_path / "zero").training_arguments(output_dir="mine")

    assert (told["output_dir"], told["per_device_train_batch_size"]) == ("mine", 2)
    assert told["deepspeed"]["zero_optimization"]["stage"] == 2
    assert told["gradient_checkpointing"] is True
    sharded = taken_of(a_plan(zero_stage=3))
    write_bundle(export_bundle(sharded), sharded, tmp_path / "fsdp")
    with pytest.raises(UserError, match="cannot train the plan of trial 3: zero_stage is 3"):
        load_best(tmp_path / "fsdp").training_arguments()


def test_arguments_alone_cannot_divide_a_model(tmp_path: Path) -> None:
    divided = taken_of(a_plan(tensor=2, data=2, zero_stage=3, micro_batch=1))
    divided = replace(divided, device="cuda")
    write_bundle(export_bundle(divided, "hf-trainer"), divided, tmp_path)

    with pytest.raises(
        UserError, match=r"DistributedConfig\(fsdp_size=2, tp_size=2, ep_size=1, fsdp"
    ):
        load_best(tmp_path).training_arguments()


def test_a_model_is_prepared_where_trainer_has_no_word_for_it(tmp_path: Path) -> None:
    for ratio, recomputed in ((0.5, 1), (1.0, 0)):  # of 2 blocks; all of them is Trainer's own
        what = taken_of(a_plan(checkpoint_ratio=ratio, attention="eager"))
        write_bundle(export_bundle(what), what, tmp_path / str(ratio))
        model = build_whole(what.spec.model, what.spec.train, attention="sdpa").module

        prepared = load_best(tmp_path / str(ratio)).prepare(model)

        wrappers = [one for one in prepared.modules() if isinstance(one, CheckpointWrapper)]
        assert len(wrappers) == recomputed
        assert prepared.config._attn_implementation == "eager"


def test_states_in_bf16_are_the_models_and_need_no_autocast_of_trainer(tmp_path: Path) -> None:
    what = taken_of(a_plan(precision="bf16", states="bf16"))
    write_bundle(export_bundle(what), what, tmp_path / "bf16")
    best = load_best(tmp_path / "bf16")

    prepared = best.prepare(build_whole(what.spec.model, what.spec.train, attention="sdpa").module)

    assert {str(one.dtype) for one in prepared.parameters()} == {"torch.bfloat16"}
    assert best.training_arguments()["bf16"] is False
