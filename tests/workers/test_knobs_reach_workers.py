"""Every knob reaches the workers: its values differ in what a worker is given or reads."""

import ast
from pathlib import Path
from typing import Any

import pytest

from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.settings.rank_layout import mesh_shape
from search_spaces.settings.render import render_environment, render_torch
from tests.search_spaces.knob_pairs import KNOB_NAMES, Pair, Planted, context_of, pairs_of, plan_of

WORKERS = Path(__file__).parents[2] / "workers"
# Where workers take knobs from the plan itself: samples of ranks, loaders, kinds of nodes, groups
FILES = ("local.py", "process_groups.py")
READERS = (*sorted((WORKERS / "data").glob("*.py")), *(WORKERS / file for file in FILES))


def rendered(plan: Plan, base: str) -> tuple[Any, ...]:
    """Returns what workers are given for a plan: settings, environment and mesh."""
    spec, model = context_of(base).spec, context_of(base).model
    device = context_of(base).cluster.device
    if plan.engine == "deepspeed":
        settings: object = render_deepspeed(plan, model, spec, device)
    else:
        settings = render_torch(plan, model)
    return settings, render_environment(plan, device), mesh_shape(plan)


def read_from_plans() -> frozenset[str]:
    """Returns the knobs that the readers take from a plan, by name."""
    nodes = (node for file in READERS for node in ast.walk(ast.parse(file.read_text())))
    return frozenset(
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and (node.value.id if isinstance(node.value, ast.Name) else "") == "plan"
    )


def reaches_workers(pair: Pair) -> bool:
    different = rendered(pair.before, pair.base) != rendered(pair.after, pair.base)
    return different or pair.knob in read_from_plans()


@pytest.mark.parametrize("knob", KNOB_NAMES)
def test_a_knob_changes_what_workers_do(knob: str) -> None:
    unread = [pair for pair in pairs_of(knob) if not reaches_workers(pair)]

    assert not unread, (
        f"no worker reads {knob}: render it in search_spaces/settings/ or read it in workers/data/;"
        f" {unread[0].before} and {unread[0].after} are the same run"
    )


def test_a_new_knob_that_no_worker_reads_is_found() -> None:
    knobs = plan_of().as_dict()
    before, after = Planted(**knobs), Planted(**knobs, static_graph=True)

    assert not reaches_workers(Pair(base="ddp", knob="static_graph", before=before, after=after))
