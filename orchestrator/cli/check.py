"""`plimsoll check`: validation of a specification, and a summary of its sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.console import print_line, table_console
from orchestrator.cli.options import Json, Overrides, SpecPath, TrustedModules
from orchestrator.cli.result import Result
from orchestrator.report.format import value_words
from search_spaces.errors import UserError
from search_spaces.facts import share_words
from search_spaces.rules.base import RuleContext
from search_spaces.specification.load import load_spec, study_name
from search_spaces.specification.schema import SweepSpec
from workers.models.trust import trust_modules

if TYPE_CHECKING:
    from search_spaces.space import Space


def check(
    spec_path: SpecPath,
    overrides: Overrides = None,
    trusted: TrustedModules = None,
    as_json: Json = False,
) -> Result:
    """Check a specification and summarize its sweep, without running a trial."""
    trust_modules(trusted or ())
    spec = load_spec(spec_path, overrides or ())

    from orchestrator.forecast.request import understand
    from orchestrator.report.document import check_document
    from orchestrator.report.terminal import labelled_rows
    from orchestrator.report.understood import understood_rows

    understanding, space = understand(spec)
    if not as_json:
        table_console().print(labelled_rows(understood_rows(understanding)))
        context = RuleContext(spec=spec, model=understanding.model, cluster=understanding.cluster)
        _show(spec_path, context, understanding.ranks, space)
    content = {"specification": str(spec_path), "study": study_name(spec, spec_path)}
    content |= check_document(spec, understanding, space)
    return Result(kind="check", content=lambda: content)


def _show(spec_path: Path, context: RuleContext, ranks: int, space: Space) -> None:
    spec = context.spec
    print_line(
        f"{spec_path} is valid: the study {study_name(spec, spec_path)} tries up to"
        f" {spec.budget.trials} plans of {context.model.name} in"
        f" {spec.budget.minutes:g} minutes, with {spec.train.global_batch} samples per step."
    )
    assumed = " (cluster.workers is auto: the sweep uses all that the cluster has)"
    print_line(_space_sentence(space, ranks) + (assumed if spec.cluster.workers == "auto" else ""))
    print_line(_searched_sentence(space))
    if sentence := _trainer_sentence(spec, space):
        print_line(sentence)
    if spec.baseline:
        print_line(_baseline_sentence(context, space))
    for sentence in _loss_sentences(context, space):
        print_line(sentence)
    if (problem := _forecast_problem(spec, space)) is not None:
        print_line(problem)


def _baseline_sentence(context: RuleContext, space: Space) -> str:
    """Names the baseline, and why it is not quite that of the specification if it cannot be."""
    from orchestrator.report.labels import plan_words
    from search_spaces.rules.registry import refusal

    spec, nearest = context.spec, space.baseline
    today = replace(nearest, **spec.baseline)
    if today == nearest:
        return f"The baseline is {plan_words(nearest)}."
    rows = max(spec.train.global_batch // (today.micro_batch * today.data), 1)
    refused = refusal(replace(today, accumulation=rows), context)
    reason = f": {refused.detail}" if refused else ""
    return f"The baseline is not legal here{reason}. The nearest plan is {plan_words(nearest)}."


def _trainer_sentence(spec: SweepSpec, space: Space) -> str:
    """Says how many plans the specification's trainer costs; empty without one."""
    if spec.trainer == "own":
        return ""
    legal = len(space.candidates)
    whole = legal + sum(count for _, count in space.lost)
    reasons = "".join(f" {count:,} leave, such as where {reason}." for reason, count in space.lost)
    return f"Trainer {spec.trainer} takes {legal:,} of {whole:,} legal plans.{reasons}"


def _loss_sentences(context: RuleContext, space: Space) -> Iterator[str]:
    """Yields what would change the loss of this model, with the numbers of its probe."""
    from orchestrator.report.labels import dependence_words
    from search_spaces.rules.compute import attention_keeps_the_loss
    from search_spaces.rules.layout import micro_batch_keeps_the_loss, padding_keeps_the_loss

    model, baseline, ruled_out = context.model, space.baseline, dict(space.ruled_out)
    smallest = replace(baseline, micro_batch=1)
    larger = replace(baseline, micro_batch=2 * baseline.micro_batch)
    grouped = replace(larger, batching="grouped")
    others = (replace(baseline, attention=name) for name in model.attentions)
    for rule, plans in (
        (micro_batch_keeps_the_loss, (smallest, grouped)),
        (padding_keeps_the_loss, (larger,)),
        (attention_keeps_the_loss, others),
    ):
        if rule.__name__ in ruled_out:
            refusals = (rule(plan, context) for plan in plans)
            yield from (f"Lossless plans only: {refusal}." for refusal in refusals if refusal)
    for found in model.dependences:
        if found.on == "batch":
            yield (
                f"Plans with another micro-batch than {baseline.micro_batch} are lossy: the loss of"
                f" a batch is {share_words(found.share)} off that of its parts."
            )
        if not found.knobs:
            yield f"No plan is lossless: {dependence_words(found)}."


def _forecast_problem(spec: SweepSpec, space: Space) -> str | None:
    """Returns a sentence on why trials will have no forecast; None if they will have one."""
    from orchestrator.forecast.calibration import Footprints
    from search_spaces.costs.plan_encoding import variants_of

    try:
        Footprints(spec, spec.cluster.device, run_code=True)(variants_of(space.table)[:1])
    except UserError as error:
        return f"No forecast: {' '.join(str(error).split())}. Trials run without one."
    return None


def _space_sentence(space: Space, ranks: int) -> str:
    legal = len(space.candidates)
    combinations = legal + sum(count for _, count in space.ruled_out)
    on = f"On {ranks} ranks" if ranks > 1 else "On 1 rank"
    words = f"{on}, {legal:,} of {combinations:,} combinations are legal"
    ruled = ", ".join(f"{count:,} by {name}" for name, count in space.ruled_out)
    return f"{words}; ruled out: {ruled}." if ruled else f"{words}."


def _searched_sentence(space: Space) -> str:
    """The knobs that have a choice; the others stand where they all stand."""
    several = [
        f"{name} {', '.join(value_words(value) for value in values)}"
        for name, values in space.domains
        if len(values) > 1
    ]
    return f"Searched: {'; '.join(several)}." if several else "No knob has more than one value."
