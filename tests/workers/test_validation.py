"""Validations under every engine and technique: longer, longest samples, evaluation, checkpoint.

Real ranks over gloo. A validation's first losses are those of a trial, so that both can be
compared.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.errors import missing_extra
from search_spaces.facts import LossDependence
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import (
    Crashed,
    Diverged,
    Measured,
    Outcome,
    OutOfMemory,
    TrialRequest,
    outcome_from_json,
    outcome_to_json,
)
from tests.workers.launch import Group, Groups
from tests.workers.odd_models import SAID
from tests.workers.one_step import built
from tests.workers.test_same_training import LOSS_TOLERANCE, reference_losses
from tests.workers.values import LLAMA, SHORT, STEPS, a_plan, a_request, a_spec, odd_model
from workers.parallel.compile import missing_for_compile
from workers.trial import validation_floor_seconds, validation_objective
from workers.worker import Worker

thorough = pytest.mark.thorough
WEIGHTS_BYTES = 424_192  # of the tiny Llama, see test_anatomy
ADAM = 3  # times the weights: they and the two states
LOSSY_TOLERANCE = 0.02
PIPELINE: dict[str, Any] = {"pipeline": 2, "data": 1}
TENSOR: dict[str, Any] = {"tensor": 2, "data": 1}
DEEPSPEED: dict[str, Any] = {"engine": "deepspeed"}
PLANS: dict[str, dict[str, Any]] = {
    "fsdp2, selective": {
        **{"zero_stage": 3, "checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}
    },
    "ddp": {},
    "ddp, checkpoints on the host": {"checkpoint_ratio": 1.0, "checkpoint_offload": True},
    "fsdp2 kept gathered, packed": {"zero_stage": 2, "batching": "packed", "checkpoint_ratio": 0.5},
    "fsdp2 offloaded": {
        **{"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    },
    "loaders": {"loader_workers": 2},
    "tensor": TENSOR,
    "sequence": {**TENSOR, "sequence_parallel": True, "attention": "eager"},
    "pipeline": PIPELINE,
    "gpipe, recomputed": {**PIPELINE, "pipeline_schedule": "gpipe", "checkpoint_ratio": 0.5},
    **{f"zero {stage}": {**DEEPSPEED, "zero_stage": stage} for stage in range(4)},
    "hybrid shard": {"zero_stage": 3, "data": 4, "replicas": 2, "micro_batch": 1},
    "weights kept by two ranks": {
        **{"zero_stage": 3, "data": 4, "reshard_ranks": 2, "micro_batch": 1}
    },
    "tensor and pipeline": {**PIPELINE, **TENSOR},
    "tensor and fsdp2": {"tensor": 2, "zero_stage": 3, "data": 2},
    "pipeline of ddp": {"pipeline": 2, "data": 2},
}
LOSSY: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16 in a pipeline": {"precision": "fp16", **PIPELINE},
    "zero 2 in bf16": {**DEEPSPEED, "zero_stage": 2, "precision": "bf16"},
    "zero 3 in bf16": {**DEEPSPEED, "zero_stage": 3, "precision": "bf16"},
    "8 bit": {"optimizer": "adamw_8bit", "zero_stage": 3},
}


def a_validation(spec: SweepSpec, folder: Path, **knobs: Any) -> TrialRequest:
    """A spec whose validation is 1.5 times as long as a trial, with checkpoints in the folder."""
    validation = spec.validation.model_copy(update={"longer": 1.5, "folder": str(folder)})
    spec = spec.model_copy(update={"validation": validation})
    request = a_request(spec, **knobs)
    return dataclasses.replace(request, validation=True)


def assert_validated(
    outcome: Outcome, tolerance: float = LOSS_TOLERANCE, *, copies: float = 1.0
) -> Measured:
    """Checks a validation of the tiny Llama, with `copies` of the model in its checkpoint."""
    assert isinstance(outcome, Measured), outcome
    assert outcome.losses[:STEPS] == pytest.approx(reference_losses(), rel=tolerance)
    assert len(outcome.losses) == STEPS * 3 // 2
    done = outcome.validation
    assert done is not None
    assert done.worst_steps == 4
    assert done.evaluation_loss is not None
    assert 0 < done.evaluation_loss < 0.9 * outcome.losses[0]
    assert done.evaluation_seconds > 0
    assert done.checkpoint_seconds > 0
    assert done.checkpoint_bytes == pytest.approx(copies * ADAM * WEIGHTS_BYTES, rel=0.1)
    assert not done.draws
    return outcome


@pytest.fixture(scope="module")
def evaluation_loss(groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Validation run on a single rank."""
    folder = tmp_path_factory.mktemp("alone")
    outcome = groups.of(1).run(a_validation(a_spec(), folder, data=1, micro_batch=4))
    done = assert_validated(outcome).validation
    assert done is not None
    assert done.evaluation_loss is not None
    return done.evaluation_loss


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param(knobs, id=name, marks=thorough if number else ())
        for number, (name, knobs) in enumerate(PLANS.items())
    ],
)
def test_every_engine_evaluates_and_saves(
    groups: Groups, evaluation_loss: float, knobs: dict[str, Any], tmp_path: Path
) -> None:
    request = a_validation(a_spec(), tmp_path, **knobs)
    outcome = groups.of(request.plan.world_size).run(request)

    # both ends of a pipeline hold the tied embedding; ZeRO 1 and 2 write the weights twice
    twice = knobs.get("pipeline", 1) > 1 or knobs.get("zero_stage") in (1, 2)
    twice &= knobs.get("engine") == "deepspeed" or "pipeline" in knobs
    validated = assert_validated(outcome, copies=4 / 3 if twice else 1)
    assert validated.validation is not None
    assert validated.validation.evaluation_loss == pytest.approx(
        evaluation_loss, rel=LOSS_TOLERANCE
    )
    assert list(tmp_path.iterdir()) == []


@thorough
@pytest.mark.parametrize("knobs", LOSSY.values(), ids=LOSSY)
def test_lossy_plans_evaluate_and_save_too(
    pair: Group, evaluation_loss: float, knobs: dict[str, Any], tmp_path: Path
) -> None:
    if knobs.get("optimizer") == "adamw_8bit" and (lack := missing_extra("bitsandbytes")):
        pytest.skip(lack)
    outcome = pair.run(a_validation(a_spec(), tmp_path, **knobs))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses[:STEPS] == pytest.approx(reference_losses(), rel=LOSSY_TOLERANCE)
    assert outcome.validation is not None
    assert outcome.validation.evaluation_loss == pytest.approx(evaluation_loss, rel=0.06)
    assert outcome.validation.checkpoint_bytes > WEIGHTS_BYTES


@thorough
@pytest.mark.timeout(1800)
@pytest.mark.skipif(missing_for_compile(torch.device("cpu")) is not None, reason="no compiler")
def test_compiled_blocks_are_evaluated(pair: Group, evaluation_loss: float, tmp_path: Path) -> None:
    (outcome, _) = pair.call(_run, a_validation(a_spec(), tmp_path, compile=True), seconds=1700)

    validated = assert_validated(outcome)
    assert validated.validation is not None
    assert validated.validation.evaluation_loss == pytest.approx(
        evaluation_loss, rel=LOSS_TOLERANCE
    )


def _run(worker: Worker, request: TrialRequest) -> Outcome:
    from workers.entry import run_trial

    return run_trial(request, worker)


@thorough
@pytest.mark.parametrize("knobs", [{}, {"zero_stage": 3}, {"engine": "deepspeed", "zero_stage": 2}])
def test_adapters_are_saved_with_what_is_frozen(
    pair: Group, knobs: dict[str, Any], tmp_path: Path
) -> None:
    spec = a_spec(train={"method": "lora", "lora": {"rank": 4}})
    outcome = pair.run(a_validation(spec, tmp_path, **knobs))

    assert isinstance(outcome, Measured), outcome
    assert outcome.validation is not None
    assert WEIGHTS_BYTES < outcome.validation.checkpoint_bytes < ADAM * WEIGHTS_BYTES


# ---------------------------------------------------------------- what is written


def _written(worker: Worker, plan: Plan, folder: str) -> dict[str, int]:
    """Counts of elements in the weights and optimizer states that this rank writes after a step."""
    ours = built(worker, TrialRequest(number=0, plan=plan, spec=a_spec()))
    ours.step()
    own = Path(folder) / str(worker.ranks.rank)
    own.mkdir()
    ours.training.save(own)
    ours.training.close()
    files = [torch.load(file, weights_only=True) for file in own.iterdir()]
    return {
        "weights": sum(value.numel() for file in files for value in file["model"].values()),
        "states": sum(
            value.numel()
            for file in files
            for state in file["optimizer"]["state"].values()
            for value in state.values()
        ),
    }


@pytest.mark.parametrize(
    "knobs", [{"zero_stage": 3}, *(pytest.param(one, marks=thorough) for one in ({}, TENSOR))]
)
def test_ranks_write_the_whole_model_once(
    pair: Group, knobs: dict[str, Any], tmp_path: Path
) -> None:
    ranks = pair.call(_written, a_plan(**knobs), str(tmp_path))

    weights = WEIGHTS_BYTES // 4
    norms = 5 * 64 if "tensor" in knobs else 0  # tensor ranks have them both
    embedding = 500 * 64  # tied, and written under both names
    held = {name: sum(rank[name] for rank in ranks) for name in ("weights", "states")}
    assert held["weights"] == weights + embedding + norms
    assert held["states"] == pytest.approx(2 * (weights + norms), rel=1e-3)  # and step counters
    assert min(rank["weights"] for rank in ranks) == (0 if not knobs else held["weights"] // 2)


def _modes(worker: Worker, plan: Plan) -> list[tuple[bool, bool]]:
    """Training mode and gradient mode of blocks in a step, an evaluation and another step."""
    ours = built(worker, TrialRequest(number=0, plan=plan, spec=a_spec()))
    seen: list[tuple[bool, bool]] = []

    def hook(block: torch.nn.Module, _: object) -> None:
        seen.append((block.training, torch.is_grad_enabled()))

    linear = next(part for part in ours.module.modules() if type(part) is torch.nn.Linear)
    linear.register_forward_pre_hook(hook)
    given = ours.batches()
    ours.step()
    ours.training.evaluate(given.batches, given.targets)
    ours.step()
    ours.training.close()
    return seen


@pytest.mark.parametrize(
    "knobs", [PIPELINE, *(pytest.param(one, marks=thorough) for one in ({}, PLANS["zero 2"]))]
)
def test_an_evaluation_keeps_no_gradients_and_training_goes_on(
    pair: Group, knobs: dict[str, Any]
) -> None:
    plan = a_plan(**knobs)
    steps = [(True, True)] * plan.accumulation

    for seen in pair.call(_modes, plan):
        assert seen == [*steps, *[(False, False)] * plan.accumulation, *steps]


# ---------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    ("where", "zero_stage", "rank"),
    [
        ("checkpoint", 3, 1),
        *(
            pytest.param(*case, marks=thorough)
            for case in product(("evaluation", "checkpoint"), (0, 3), (None, 1))
            if case != ("checkpoint", 3, 1)
        ),
    ],
)
def test_what_fails_in_a_validation_alone_says_where(
    pair: Group, where: str, zero_stage: int, rank: int | None, tmp_path: Path
) -> None:
    spec = a_spec(model=odd_model("raises", where=where, rank=rank), objective=SHORT)
    knobs = {"zero_stage": zero_stage, "micro_batch": 4}
    trial = pair.run(a_request(spec, **knobs))
    validation = pair.run(a_validation(spec, tmp_path, **knobs))
    pair.assert_trains()

    assert isinstance(trial, Measured), trial
    if where == "checkpoint" and zero_stage == 0 and rank == 1:
        assert isinstance(validation, Measured)  # of two replicas the first one writes
        return
    assert isinstance(validation, Crashed), validation
    assert (validation.cause, validation.phase) == ("exception", where)
    assert validation.rank == (rank or 0)
    assert validation.detail == f"LookupError: {SAID}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "knobs", "expected"),
    [
        ("allocates", {"zero_stage": 2}, (OutOfMemory, "evaluation", 1)),
        *(
            pytest.param(*case, marks=thorough)
            for case in (
                ("allocates", PLANS["zero 2"], (OutOfMemory, "evaluation", 1)),
                ("nan", {}, (Diverged, None, None)),
                ("vector", {}, (Measured, None, None)),  # a model may give no loss there
            )
        ),
    ],
    ids=str,
)
def test_an_evaluation_has_endings_of_its_own(
    pair: Group, fault: str, knobs: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    spec = a_spec(model=odd_model(fault, where="evaluation", rank=expected[2]))
    outcome = pair.run(a_validation(spec, tmp_path, **knobs))
    pair.assert_trains()

    found = type(outcome), getattr(outcome, "phase", None), getattr(outcome, "rank", None)
    assert found == expected, outcome
    if isinstance(outcome, Measured):
        assert outcome.validation is not None
        assert outcome.validation.evaluation_loss is None


def test_dropout_is_noticed(pair: Group, tmp_path: Path) -> None:
    """Losses of two plans that draw random numbers differ."""
    config = LLAMA["config"] | {"attention_dropout": 0.1}
    found = LossDependence(on="data", knobs=(), share=0.4)
    request = a_validation(a_spec(model=LLAMA | {"config": config}), tmp_path)
    outcome = pair.run(dataclasses.replace(request, dependences=(found,)))

    assert isinstance(outcome, Measured), outcome
    assert outcome.validation is not None
    assert outcome.validation.draws
    assert outcome.validation.dependences == (found,)  # which the record keeps
    assert outcome_from_json(outcome_to_json(outcome)) == outcome


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("torch", "File too large"),
        pytest.param("deepspeed", "torch could not write the checkpoint", marks=thorough),
    ],
)
def test_a_checkpoint_that_cannot_be_written_whole(
    pair: Group, engine: str, said: str, tmp_path: Path
) -> None:
    """A limit on file size simulates a full disk."""
    pair.call(_limit_files, 100_000)
    outcome = pair.run(a_validation(a_spec(), tmp_path, engine=engine, zero_stage=0))
    pair.call(_limit_files, None)

    assert isinstance(outcome, Crashed), outcome
    assert (outcome.rank, outcome.phase) == (0, "checkpoint")
    assert said in outcome.detail
    assert str(tmp_path) in outcome.detail
    assert list(tmp_path.iterdir()) == []


def _limit_files(_: Worker, size: int | None) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


@thorough
def test_what_a_killed_process_left_is_removed(alone: Group, tmp_path: Path) -> None:
    """The locks say who lives, also to a container that cannot see the process (R17)."""
    with living_checkpoint(tmp_path) as folder:
        killed = tmp_path / "plimsoll-checkpoint-0123"
        killed.mkdir()
        killed.with_suffix(".lock").touch()
        outcome = alone.run(a_validation(a_spec(), tmp_path, data=1, micro_batch=4))

        assert isinstance(outcome, Measured), outcome
        assert sorted(tmp_path.iterdir()) == sorted([folder, folder.with_suffix(".lock")])
    outcome = alone.run(a_validation(a_spec(), tmp_path, data=1, micro_batch=4))
    assert isinstance(outcome, Measured), outcome
    assert list(tmp_path.iterdir()) == []  # its process was killed


@contextmanager
def living_checkpoint(parent: Path) -> Iterator[Path]:
    """The checkpoint of a process, which is killed at the end of the block."""
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.workers.values import a_spec\n"
        "from workers.engines.checkpoint import checkpoint_folder\n"
        "with checkpoint_folder(a_spec(validation={'folder': sys.argv[1]})) as folder:\n"
        "    print(folder, flush=True)\n    time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, parent], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@thorough
def test_a_validation_meets_the_longest_samples_beside_the_optimizers_states(
    tmp_path: Path,
) -> None:
    """A trial's first step runs before there are optimizer states, which then come on top.

    Embedding and logits take more than 32 MiB each, which glibc returns at once, so that held
    memory is deterministic. The longest samples cause both peaks.
    """
    wide = {"hidden_size": 448, "intermediate_size": 64, "vocab_size": 20_000}
    wide |= {"tie_word_embeddings": False}
    spec = a_spec(
        model=LLAMA | {"config": LLAMA["config"] | wide},
        data={"lengths": {4: 2000, 256: 1}},
        cluster={"memory_gib": 2},
        train={"global_batch": 4, "sequence_length": 256},
        objective={"max_steps": 6, "max_seconds": 600},
    )
    knobs = {"data": 1, "micro_batch": 4, "accumulation": 1}
    group = Group(1, spec)
    try:
        trial, validation = (
            group.run(request)
            for request in (a_request(spec, **knobs), a_validation(spec, tmp_path, **knobs))
        )
    finally:
        group.stop()

    assert isinstance(trial, Measured), trial
    assert isinstance(validation, Measured), validation
    states = validation.memory.anatomy.optimizer_states
    assert states > 128 * 2**20
    assert validation.memory.peak_bytes > trial.memory.peak_bytes + 0.7 * states


@pytest.mark.parametrize(
    ("max_seconds", "longer", "floor_seconds"),
    [(60.0, 3.0, 10.0), (10.0, 3.0, 10.0), (1.0, 3.0, 1.0), (0.1, 1.0, 1 / 30)],
)
def test_a_validation_lasts_ten_seconds_or_a_third_of_its_maximum(
    max_seconds: float, longer: float, floor_seconds: float
) -> None:
    spec = a_spec(objective={"max_seconds": max_seconds}, validation={"longer": longer})

    assert validation_floor_seconds(validation_objective(spec)) == pytest.approx(floor_seconds)
