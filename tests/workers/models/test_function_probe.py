"""Probes of users' functions: what a loss is a mean over, state, outputs, and data."""

from functools import cache
from typing import Any

import pytest
import torch

from search_spaces.errors import DataError, ModelError, SpecError
from search_spaces.facts import (
    ClusterFacts,
    Count,
    Fit,
    LossForm,
    ModelFacts,
    Recomputation,
    StepFindings,
    TargetRule,
)
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec
from tests.workers.depending_models import Data
from workers.models.fake_memory import FakeMemory
from workers.models.function import build_fake_function
from workers.models.function_probe import with_function_findings
from workers.models.load import describe

CPU = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=None)
SAME = 1e-5


def spec_of(
    function: str = "make", space: dict[str, Any] | None = None, **config: Any
) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "model": {"name": f"tests.workers.depending_models:{function}", "config": config},
            "train": {"global_batch": 8, "sequence_length": 8, "precision": "fp32"},
            "space": space or {},
        }
    )


def facts_of(spec: SweepSpec) -> ModelFacts:
    return _facts(spec.model_dump_json())


@cache
def _facts(spec_json: str) -> ModelFacts:
    spec = SweepSpec.model_validate_json(spec_json)
    return with_function_findings(describe(spec.model, spec.train), spec.model, spec.train)


def space_of(spec: SweepSpec) -> Space:
    return build_space(RuleContext(spec=spec, model=facts_of(spec), cluster=CPU), 2)


def micro_batches(spec: SweepSpec) -> set[int]:
    return {plan.micro_batch for plan in space_of(spec).candidates}


def test_a_mean_over_samples_that_are_what_their_numbers_say_is_left_alone() -> None:
    facts = facts_of(spec_of())

    assert facts.dependences == ()
    assert facts.batch_difference < SAME
    assert micro_batches(spec_of()) == {1, 2, 4}


def test_a_loss_that_depends_on_the_samples_beside_one() -> None:
    facts = facts_of(spec_of(way="normalised"))

    assert facts.batch_difference > 0.01
    assert [found.on for found in facts.dependences] == ["batch"]
    with pytest.raises(SpecError, match=r"the loss of Net .*: set train.micro_batch"):
        micro_batches(spec_of(way="normalised"))
    assert micro_batches(spec_of(way="normalised", space={"micro_batch": [4]})) == {4}


def failing(kind: str, device: str = "cpu") -> SweepSpec:
    spec = spec_of()
    name = {"name": "tests.workers.failing_models:make", "config": {"kind": kind}}
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update=name),
            "cluster": spec.cluster.model_copy(update={"device": device}),
        }
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("of two", r"the batch maker .*: TypeError: .* a tuple of sample numbers"),
        ("renamed", r"Net.forward\(x\) does not take a batch with ids: missing .* 'x'"),
        ("wrapped", "returned DataParallel, must return the module inside"),
        ("compiled", "returned OptimizedModule, must return the module inside"),
    ],
)
def test_what_fails_on_every_machine_is_refused(kind: str, message: str) -> None:
    with pytest.raises((ModelError, DataError), match=message):
        facts_of(failing(kind))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("narrow", "forward: RuntimeError: mat1 and mat2 shapes"),
        ("unready", "forward: AttributeError: 'Unready' object has no attribute 'missing'"),
    ],
)
def test_what_fails_on_this_cpu_is_refused_for_cpus_and_said_for_others(
    kind: str, reason: str
) -> None:
    step = facts_of(failing(kind)).step

    assert step is not None
    assert reason in step.not_probed
    with pytest.raises(SpecError, match=r"training_step_runs \(each trial would end with"):
        space_of(failing(kind))
    other = ClusterFacts(device="auto", slots=2, memory_limit_bytes=None)
    context = RuleContext(spec=failing(kind), model=facts_of(failing(kind)), cluster=other)
    assert len(build_space(context, 2).candidates) > 1


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("elsewhere", "FileNotFoundError"), ("uneven", "equal size"), ("odd", "an even batch")],
)
def test_what_may_work_elsewhere_or_with_other_micro_batches_is_tried(
    kind: str, reason: str
) -> None:
    step = facts_of(failing(kind)).step

    assert step is not None
    assert reason in step.not_probed
    assert len(space_of(failing(kind)).candidates) > 1


def test_a_model_that_its_function_converts_is_traced() -> None:
    spec = failing("half")

    built = build_fake_function(spec.model, spec.train, FakeMemory())

    assert {one.dtype for one in built.module.parameters()} == {torch.float32}


def step_of(loss: str, **config: Any) -> tuple[ModelFacts, StepFindings]:
    spec = spec_of("make", loss=loss, **config)
    model = spec.model.model_copy(update={"name": "tests.workers.loss_models:make"})
    facts = facts_of(spec.model_copy(update={"model": model}))
    assert facts.step is not None
    assert not facts.step.not_probed
    return facts, facts.step


LABELS = TargetRule(count=Count.LABELS, key="labels")
SHIFTED = TargetRule(count=Count.SHIFTED_LABELS, key="labels")
SAMPLES, ONE = TargetRule(count=Count.SAMPLES), TargetRule(count=Count.ONE)


@pytest.mark.parametrize(
    ("loss", "rule", "form"),
    [
        ("labels", LABELS, LossForm.TENSOR),
        ("shifted inside", SHIFTED, LossForm.TENSOR),
        ("dropout", SHIFTED, LossForm.TENSOR),
        ("noise", SAMPLES, LossForm.TENSOR),
        ("class weights", TargetRule(count=Count.VALUE, key="targets"), LossForm.TENSOR),
        ("sample weights", TargetRule(count=Count.SUM, key="weights"), LossForm.TENSOR),
        ("mask", TargetRule(count=Count.SUM, key="mask"), LossForm.TENSOR),
        ("samples", SAMPLES, LossForm.TENSOR),
        ("ctc", SAMPLES, LossForm.TENSOR),
        ("preferring", SAMPLES, LossForm.TENSOR),
        ("gradient penalty", SAMPLES, LossForm.TENSOR),
        ("sum", ONE, LossForm.TENSOR),
        ("mapping", SHIFTED, LossForm.MAPPING),
        ("tuple", SHIFTED, LossForm.TUPLE),
        ("logits first", SHIFTED, LossForm.TUPLE),
    ],
)
def test_what_a_loss_is_a_mean_over_is_found(loss: str, rule: TargetRule, form: LossForm) -> None:
    facts, step = step_of(loss, says_targets=loss == "class weights")

    assert (step.fit, facts.target_rule, step.loss_form) == (Fit.FOUND, rule, form)
    assert facts.dependences == ()
    assert step.draws == (loss in ("dropout", "noise"))
    assert step.differentiates == (loss == "gradient penalty")
    assert (step.recomputation, step.carries_state) == (Recomputation.SAME, False)


@pytest.mark.parametrize(
    ("loss", "fit"), [("class weights", Fit.HIDDEN), ("contrastive", Fit.NOTHING)]
)
def test_a_loss_that_no_rule_fits(loss: str, fit: Fit) -> None:
    facts, step = step_of(loss)

    assert step.fit is fit
    assert [found.on for found in facts.dependences] == ["batch"]


@pytest.mark.parametrize(
    ("loss", "buffer", "recomputation"),
    [
        ("spectral norm", "blocks.0.inner.parametrizations.weight.0._u", Recomputation.GRADIENT),
        ("moving means", "codes", Recomputation.SAME),  # outside its blocks
        ("counting", None, Recomputation.SAME),
    ],
)
def test_state_that_training_changes(
    loss: str, buffer: str | None, recomputation: Recomputation
) -> None:
    facts, step = step_of(loss)

    assert step.fit is Fit.FOUND  # from equal state
    assert facts.batch_difference == step.carried_share > SAME
    assert (step.changed_state[:1], step.unsaved_state) == ((buffer,) * bool(buffer), not buffer)
    assert step.recomputation is recomputation


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ("vector", r"one loss per sample, shape \(2,\): return loss.mean\(\)"),
        ("two", "has loss_lm, loss_cls: return their sum as loss"),
        ("nothing", "has logits: return the loss as loss"),
    ],
)
def test_outputs_without_one_loss_are_refused(loss: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        step_of(loss)


@pytest.mark.parametrize("hidden", [32, 2**13], ids=["whole", "by a small one"])
def test_adapters_of_peft_are_weighed_by_shifted_labels(hidden: int) -> None:
    spec = spec_of(hidden=hidden)
    model = spec.model.model_copy(update={"name": "tests.workers.loss_models:make_adapted"})
    facts = facts_of(spec.model_copy(update={"model": model}))

    assert facts.target_rule == SHIFTED
    assert facts.dependences == ()


def test_three_samples_are_enough_to_tell_padding_from_a_mask() -> None:
    facts, _ = step_of("mask", ends=3)

    assert facts.target_rule == TargetRule(count=Count.SUM, key="mask")


def test_weights_of_some_passes_only() -> None:
    _, step = step_of("skipping")

    assert set(step.varying) == {"blocks.0.inner.weight", "blocks.0.inner.bias"}
    assert step.unused == ()


def test_a_loss_that_one_sample_does_not_have() -> None:
    spec = spec_of(way="needs two")

    assert facts_of(spec).smallest_micro_batch == 2
    with pytest.raises(SpecError, match=r"the loss of Net .*: set train.micro_batch"):
        micro_batches(spec)
    assert micro_batches(spec_of(way="needs two", space={"micro_batch": [2]})) == {2}
    with pytest.raises(SpecError, match="fails with 1 sample: micro_batch must be 2 or more"):
        micro_batches(spec_of(way="needs two", space={"micro_batch": [1]}))


@pytest.mark.parametrize("data", ["own state", "by order", "by build", "by batch"])
def test_batches_that_are_not_the_same_for_the_same_samples(data: Data) -> None:
    facts = facts_of(spec_of(data=data))

    assert facts.data_difference > 0.05
    assert [(found.on, found.knobs) for found in facts.dependences] == [("data", ())]
    assert micro_batches(spec_of(data=data)) == {1, 2, 4}  # no knob changes it
    assert space_of(spec_of(data=data)).dependences == facts.dependences


def test_a_large_model_is_not_built_for_a_probe() -> None:
    facts = facts_of(spec_of("make_large"))

    assert facts.data_difference == 0.0
    assert facts.step is not None
    assert "268,435,456 parameters" in facts.step.not_probed
