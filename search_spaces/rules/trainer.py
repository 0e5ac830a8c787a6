"""Rules of the trainer that the specification names: it must take each plan."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, RuleContext
from search_spaces.settings.trainers import Trainer, trainer_table

PREFIX = "trainer_takes_"


@cache
def trainer_rules(name: str) -> Mapping[str, Rule]:
    """Returns a rule for each knob, and one for all else that a trainer may refuse.

    With one rule for all knobs, a table of plans would be checked row by row: see `refused_rows`.
    """
    if name == "own":
        return {}
    trainer = trainer_table()[name]
    rules = {f"{PREFIX}{field.name}": _of_knob(field.name, trainer) for field in fields(Plan)}

    def others(plan: Plan, context: RuleContext) -> str | None:
        job = context.spec, context.model, context.cluster.device
        return next(iter(trainer.others(plan, *job)), None)

    return rules | {f"{PREFIX}the_job": others}


def _of_knob(knob: str, trainer: Trainer) -> Rule:
    expressed = {knobs.engine: knobs for knobs in trainer.expressed}

    def rule(plan: Plan, _: RuleContext) -> str | None:
        if (knobs := expressed.get(plan.engine)) is None:
            return f"engine is {plan.engine}"
        return knobs.refusal(knob, getattr(plan, knob))

    return rule
