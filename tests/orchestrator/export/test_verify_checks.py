"""Checks of an observed run against the record: each difference is reported, and no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export.verify import (
    Finding,
    changed_files,
    check_run,
    observed_losses,
    observed_speed,
)
from tests.orchestrator.export.values import LOSSES, TRAIN, a_run, an_export
from tests.workers.values import a_spec

EXPORTED = an_export()


def wrong(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.check for finding in findings if finding.passed is False]


def found(findings: tuple[Finding, ...], what: str) -> Finding:
    return next(finding for finding in findings if finding.check == what)


def test_a_run_as_it_should_be_holds_in_everything() -> None:
    findings = check_run(EXPORTED, a_run(EXPORTED))

    assert {finding.passed for finding in findings} == {True}
    assert found(findings, "samples/s").observed.endswith("100 %")


@pytest.mark.parametrize(
    ("seen", "what"),
    [
        ({"wrapper": "fsdp2"}, "wrapper"),
        ({"zero_stage": 3}, "ZeRO stage"),
        ({"rows": 1}, "micro-batch"),
        ({"passes": 1}, "accumulation"),
        ({"recomputed": (("Block", 4),)}, "recomputed blocks"),
        ({"compiled": 4}, "compiled"),
        ({"compute": "bfloat16"}, "compute dtype"),
        ({"attention": "eager"}, "attention"),
        ({"frozen": ("float32", "uint8")}, "frozen weights"),
        ({"loss_weight": 0.5}, "loss weight"),
        ({"clip": 5000.0}, "gradient clipping"),
        ({"clip": None}, "gradient clipping"),
        ({"rate": 10}, "learning rate"),
        ({"decays": (0.0,)}, "weight decay"),
        ({"decays": (0.1, 0.2)}, "weight decay"),
        ({"rates": (("betas", (0.9, 0.99)), ("eps", 1e-8))}, "betas"),
        ({"rates": (("betas", (0.9, 0.999)), ("eps", 1e-8), ("eps", 1e-6))}, "eps"),  # two groups
        ({"off": 0.01}, "losses"),  # of 4, where 0.004 may be
        ({"step_seconds": 0.6}, "samples/s"),
    ],
)
def test_what_differs_is_told(seen: dict[str, Any], what: str) -> None:
    assert wrong(check_run(EXPORTED, a_run(EXPORTED, **seen))) == [what]


@pytest.mark.parametrize(
    ("train", "observed", "rate", "usual", "other"),
    [
        ({"optimizer": "adamw", "betas": (0.9, 0.95)}, "AdamW fused", "betas", (0.9, 0.95), None),
        ({"optimizer": "sgd"}, "SGD foreach", "momentum", 0.0, 0.9),
        ({"optimizer": "sgd", "momentum": 0.9}, "SGD foreach", "momentum", 0.9, 0.0),
        ({"optimizer": "lion"}, "Lion", "betas", (0.9, 0.99), (0.9, 0.999)),
        ({"optimizer": "muon"}, "Muon", "momentum", 0.95, 0.9),
    ],
)
def test_each_optimizer_has_its_own_rates(
    train: dict[str, Any], observed: str, rate: str, usual: object, other: object
) -> None:
    named = train["optimizer"]
    knobs = {"optimizer": "adamw_fused" if named == "adamw" else named}
    exported = replace(an_export(knobs=knobs), train=a_spec(train=TRAIN | train).train)
    eps = (("eps", 1e-8),) if named == "adamw" else ()
    right, wrongly = (
        {"optimizer": observed, "rates": ((rate, value), *eps)} for value in (usual, other)
    )

    assert not wrong(check_run(exported, a_run(exported, **right)))
    assert other is None or wrong(check_run(exported, a_run(exported, **wrongly))) == [rate]


def test_blocks_that_no_gradient_reaches_need_not_be_recomputed() -> None:
    idle = replace(EXPORTED, unused_weights=True)
    run = a_run(EXPORTED, recomputed=(("Block", 1),))

    assert wrong(check_run(EXPORTED, run)) == ["recomputed blocks"]
    assert not wrong(check_run(idle, run))


def test_shards_are_of_blocks_and_of_as_many_replicas() -> None:
    exported = an_export(knobs={"zero_stage": 3})
    sharded = {"wrapper": "fsdp2", "zero_stage": 3, "wrapped": (("Block", 4), ("Model", 1))}

    assert not wrong(check_run(exported, a_run(exported, **sharded)))
    whole = sharded | {"wrapped": (("Model", 1),)}
    assert wrong(check_run(exported, a_run(exported, **whole))) == ["FSDP units"]
    replicated = sharded | {"replicas": 2}
    assert wrong(check_run(exported, a_run(exported, **replicated))) == ["replicas"]


def test_the_loss_is_the_mean_of_ranks_that_have_one() -> None:
    ranks = a_run(EXPORTED)
    assert observed_losses(ranks) == [9.0, *LOSSES]

    silent = replace(ranks[0], steps=tuple(replace(s, loss=None) for s in ranks[0].steps))
    assert observed_losses([silent, ranks[1]]) == [10.0, *(loss + 1 for loss in LOSSES)]
    assert observed_losses([silent]) == []
    assert found(check_run(EXPORTED, [silent, silent]), "losses").passed is None


def test_losses_of_other_data_are_not_compared() -> None:
    finding = found(check_run(EXPORTED, a_run(EXPORTED, off=5.0), ["train.py"]), "losses")

    assert finding.passed is None
    assert "train.py was changed" in finding.observed


def test_packed_samples_have_no_rows_and_fewer_passes() -> None:
    exported = an_export(knobs={"batching": "packed", "micro_batch": 1})
    findings = check_run(exported, a_run(exported, passes=exported.plan.accumulation - 1))

    assert not wrong(findings)
    assert found(findings, "micro-batch").passed is None
    more = check_run(exported, a_run(exported, passes=exported.plan.accumulation + 1))
    assert wrong(more) == ["accumulation"]


def test_micro_batches_by_tokens_have_fewer_rows_and_more_passes() -> None:
    exported = an_export(knobs={"micro_batch_tokens": 64})
    micro, passes = exported.plan.micro_batch, exported.plan.accumulation

    assert not wrong(check_run(exported, a_run(exported, rows=micro - 1, passes=passes + 1)))
    more = check_run(exported, a_run(exported, rows=micro + 1, passes=passes - 1))
    assert wrong(more) == ["micro-batch", "accumulation"]


@pytest.mark.parametrize(("columns", "passed"), [(192, True), (190, False), (None, None)])
def test_rows_are_of_the_plans_multiple(columns: int | None, passed: bool | None) -> None:
    exported = an_export(knobs={"pad_multiple": 64})
    finding = found(check_run(exported, a_run(exported, columns=columns)), "row width")

    assert (finding.expected, finding.passed) == ("a multiple of 64 tokens", passed)


def test_speed_is_of_the_steps_after_those_that_were_looked_at() -> None:
    (rank, _) = a_run(EXPORTED)
    slow_start = [replace(s, at=s.at - (20 if i < 2 else 0)) for i, s in enumerate(rank.steps)]

    speed = observed_speed(EXPORTED.plan, replace(rank, steps=tuple(slow_start)))

    assert speed is not None
    assert speed.value == pytest.approx(EXPORTED.samples_per_second.value)
    assert observed_speed(EXPORTED.plan, replace(rank, steps=rank.steps[:3])) is None


def test_files_that_were_changed_or_are_gone_are_named(tmp_path: Path) -> None:
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of "test"
    exported = an_export(files=(("same", digest), ("other", digest), ("gone", digest)))
    (tmp_path / "same").write_text("test")
    (tmp_path / "other").write_text("Test")

    assert changed_files(exported, tmp_path) == ("other", "gone")
