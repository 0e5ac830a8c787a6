"""`plimsoll check`: whether a specification can be used, and what it would do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.console import say
from orchestrator.cli.options import Json, Overrides, SpecPath
from orchestrator.cli.result import Result
from orchestrator.report.format import count_words
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.spec.load import load_spec, spec_to_tree, study_name
from search_spaces.spec.schema import SweepSpec

if TYPE_CHECKING:
    from search_spaces.space import Space


def check(spec_path: SpecPath, overrides: Overrides = None, as_json: Json = False) -> Result:
    """Check a specification and say what it would do, without running anything."""
    spec = load_spec(spec_path, overrides or ())
    ranks = _ranks(spec)
    model, space = expected(spec, ranks)
    if not as_json:
        _show(spec_path, spec, ranks, model, space)
    content = {
        "specification": str(spec_path),
        "study": study_name(spec, spec_path),
        "model": {
            "name": model.name,
            "parameters": model.parameters,
            "blocks": model.blocks,
        },
        "ranks": ranks,
        "ranks_assumed": spec.cluster.workers == "auto",
        "legal_plans": len(space.candidates),
        "ruled_out": dict(space.ruled_out),
        "searched": {name: list(values) for name, values in space.domains if len(values) > 1},
        "effective_specification": spec_to_tree(spec),
    }
    return Result(kind="check", content=lambda: content)


def _show(spec_path: Path, spec: SweepSpec, ranks: int, model: ModelFacts, space: Space) -> None:
    say(
        f"{spec_path} is valid: the study {study_name(spec, spec_path)} tries up to"
        f" {spec.budget.trials} plans of {model.name} ({_size_words(model)}) in"
        f" {spec.budget.minutes:g} minutes, {spec.train.global_batch} samples a step."
    )
    assumed = " (cluster.workers is auto: the sweep takes all there are)"
    say(_space_sentence(space, ranks) + (assumed if spec.cluster.workers == "auto" else ""))
    say(_searched_sentence(space))
    if (lack := _forecast_lack(spec, space)) is not None:
        say(lack)


def expected(spec: SweepSpec, ranks: int) -> tuple[ModelFacts, Space]:
    """The model, and the space on a cluster with room for so many ranks and no more.

    Raises:
        UserError: If the model cannot be found, or no plan is legal.
    """
    from search_spaces.facts import split_by_accelerator
    from search_spaces.rules.base import RuleContext
    from search_spaces.space import build_space
    from workers.models.load import describe

    model = describe(spec.model, spec.train)
    cluster = ClusterFacts(
        device=spec.cluster.device, slots=ranks, memory_limit_bytes=spec.memory_limit_bytes
    )
    around = RuleContext(spec=spec, model=model, cluster=split_by_accelerator(cluster, spec))
    return model, build_space(around, ranks)


def _size_words(model: ModelFacts) -> str:
    active = "" if model.active is None else f", {count_words(model.active)} active for a token"
    return f"{count_words(model.parameters)} parameters{active}, {model.blocks} blocks"


def _forecast_lack(spec: SweepSpec, space: Space) -> str | None:
    """Says in a sentence why trials will have no forecast; None if they will have one."""
    from orchestrator.forecast.calibration import Footprints
    from search_spaces.costs.plan_encoding import variants_of

    try:
        Footprints(spec, spec.cluster.device)(variants_of(space.table)[:1])
    except UserError as error:
        return f"No forecast: {' '.join(str(error).split())}. Trials are measured without one."
    return None


def _ranks(spec: SweepSpec) -> int:
    """Ranks to count the space for, without asking a cluster: one where nothing is known."""
    if spec.cluster.workers == "auto" and spec.cluster.device != "cpu":
        return 1
    return spec.cluster.ranks_of(max((os.cpu_count() or 1) // spec.cluster.cpus_per_worker, 1))


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
        f"{name} {', '.join(_value_words(value) for value in values)}"
        for name, values in space.domains
        if len(values) > 1
    ]
    return f"Searched: {'; '.join(several)}." if several else "Nothing is searched."


def _value_words(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
