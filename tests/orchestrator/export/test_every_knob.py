"""Every knob in every format: a plan that differs in it exports other files, or is refused.

The knobs and their values come from `Plan`, so that a new knob is tried without a change here.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache

import pytest

from orchestrator.export.bundle import Bundle
from orchestrator.export.formats import FORMATS, choose_format, export_bundle
from orchestrator.export.scripts import quotable_title
from search_spaces.errors import UserError
from search_spaces.knobs.search_defaults import implementations
from search_spaces.plan import CHOICES, Plan
from search_spaces.settings.expressed_knobs import ExpressedKnobs
from search_spaces.settings.trainers import Trainer, trainer_table
from search_spaces.specification.schema import ModelSpec
from tests.orchestrator.export.folders import source_of
from tests.search_spaces.knob_pairs import KNOB_NAMES, Pair, Planted, context_of, pairs_of, plan_of

TRAINERS = trainer_table()
# a model that all trainers have
SPEC = context_of("ddp").spec.model_copy(update={"model": ModelSpec(name="llama-3-8b")})
MODEL = replace(context_of("ddp").model, task="causal-lm")


@cache
def exported(name: str, plan: Plan, base: str) -> Bundle | str:
    """Returns the export of a plan without its title, or the sentence that refuses it."""
    context = context_of(base)
    source = source_of(plan, SPEC, MODEL, context.cluster.device)
    try:
        bundle = export_bundle(source, name)
    except UserError as refused:
        return str(refused)
    title = quotable_title(source)  # it names every knob, and sets none
    return replace(
        bundle, files={file: text.replace(title, "") for file, text in bundle.files.items()}
    )


def settings_of(bundle: Bundle) -> tuple[object, ...]:
    return (bundle.files, bundle.command, bundle.environment)


def declaration(name: str, plan: Plan) -> ExpressedKnobs | None:
    return next((each for each in TRAINERS[name].expressed if each.engine == plan.engine), None)


def fault_of(name: str, pair: Pair) -> str | None:
    """Returns what is wrong with the exports of a pair in a format; None if nothing is."""
    knob, before, after = (
        pair.knob,
        *(exported(name, plan, pair.base) for plan in pair.plans),
    )
    what = f"{name}, {pair.base}: {knob} {getattr(pair.after, knob)!r}, unlike"
    what += f" {getattr(pair.before, knob)!r},"
    if isinstance(before, str):
        return None  # nothing to compare with
    if isinstance(after, str):
        reasons = after.removeprefix(f"{name} cannot express the plan of trial 3: ")
        named = reasons != after and pair.changed & set(re.findall(r"\w+", reasons))
        return None if named else f"{what} is refused without its name and the format's: {after}"
    knobs = declaration(name, pair.after)
    assert knobs is not None
    if knob in knobs.in_caveats and set(before.caveats) == set(after.caveats):
        return f"{what} changes no caveat, although it is in `in_caveats`"
    in_files = knob in knobs.written or knob not in knobs.in_caveats
    if in_files and settings_of(before) == settings_of(after):
        return f"{what} changes no file, command or variable: refuse it"
    return None


# values of the knob optimizer that no plan differs in: train.optimizer decides
BY_SPECIFICATION = set(CHOICES["optimizer"]) - set(implementations("adamw"))


@pytest.mark.cases_by_default(12)
@pytest.mark.parametrize("knob", KNOB_NAMES)
def test_a_knob_changes_the_export_or_is_refused(knob: str) -> None:
    pairs = pairs_of(knob)
    tried = {getattr(plan, knob) for pair in pairs for plan in pair.plans}

    missing = set(CHOICES.get(knob, ())) - tried - BY_SPECIFICATION
    assert pairs, f"{knob} is inactive in all plans of BASES: add one in which it is active"
    assert not missing, f"no plan of BASES allows {knob} {missing}: add one that does"
    faults = [fault for name in FORMATS for pair in pairs if (fault := fault_of(name, pair))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_tried_with_every_knob_that_it_declares(name: str) -> None:
    for knobs in TRAINERS[name].expressed:
        untried = [
            knob
            for knob in sorted(knobs.declared)
            if knob not in ("engine", "accumulation")
            and not any(_compares(name, pair) for pair in pairs_of(knob))
        ]
        assert not untried, f"{name} declares {untried}: no plan of BASES shows it in its files"


def _compares(name: str, pair: Pair) -> bool:
    return not any(isinstance(exported(name, plan, pair.base), str) for plan in pair.plans)


def undeclared(plan_type: type[Plan], trainers: Mapping[str, Trainer]) -> list[str]:
    """Returns a sentence for each knob of which no format says anything."""
    declared = {
        knob
        for each in trainers.values()
        for knobs in each.expressed
        for knob in (*knobs.declared, *(limit.knob for limit in knobs.limits))
    }
    return [
        f"{each.name}: no export format declares it. Add it to `written` of each format whose"
        " files set it (orchestrator/export), to `in_caveats` of those that leave it to the user"
        " in a caveat, or to `limits` of one that refuses its values, with the reason"
        for each in fields(plan_type)
        if each.name not in declared
    ]


def test_every_knob_is_declared() -> None:
    assert not (found := undeclared(Plan, TRAINERS)), "\n".join(found)


def test_a_new_knob_without_an_export_is_found() -> None:
    found = undeclared(Planted, TRAINERS)[-1]

    assert found.startswith("static_graph: no export format declares it. Add it to `written`")


@pytest.mark.parametrize("name", FORMATS)
def test_a_new_knob_without_an_export_is_refused_off_its_default(name: str) -> None:
    stages = (0, 1) if name == "megatron-bridge" else (3, 2)
    for engine, stage in zip(("torch", "deepspeed"), stages, strict=True):
        knobs = plan_of(engine=engine, zero_stage=stage, precision="bf16").as_dict()
        if declaration(name, plan_of(**knobs)) is None:
            continue
        source = source_of(Planted(**knobs), SPEC, MODEL, "cuda")

        assert choose_format(name, source) == name
        record = replace(source.record, plan=Planted(**knobs, static_graph=True))
        with pytest.raises(UserError, match=f"^{name} cannot express .*: static_graph is true; no"):
            choose_format(name, replace(source, record=record))
