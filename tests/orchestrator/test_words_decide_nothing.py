"""Rewording any message changes no decision: each text function returns random letters here."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
import random
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator.report
from orchestrator.core.events import Event, TrialEnded
from orchestrator.core.instructions import Run
from orchestrator.explain.trial import explain_trial
from orchestrator.explain.untried import explain_untried
from orchestrator.explain.winner import explain_best
from orchestrator.report.explain_text import render_best, render_trial
from orchestrator.report.live import PlainView
from orchestrator.report.reasons import outcome_sentence
from orchestrator.report.sweep_text import best_sentence
from orchestrator.tracking.events import EventFile
from search_spaces.plan import Plan
from search_spaces.trial import Outcome
from tests.orchestrator.controller.sweeps import DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.explain.values import a_ground, a_plan, a_state, measured, out_of_memory
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured, make_oom

_TEXTS = ("str", "Iterator[str]", "tuple[str, ...]", "list[str]")


def scramble(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes all functions of `orchestrator.report` that make text return random letters.

    Returns:
        Their number.
    """
    draw = random.Random(0)

    def letters(*_: Any, **__: Any) -> str:
        return "".join(draw.choices(string.ascii_lowercase, k=12))

    replaced: dict[Callable[..., Any], Callable[..., Any]] = {}
    for found in pkgutil.iter_modules(orchestrator.report.__path__, "orchestrator.report."):
        module = importlib.import_module(found.name)
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == found.name:
                returns = function.__annotations__.get("return")
                if returns in _TEXTS:
                    replaced[function] = _of(letters, returns)
    for name, module in list(sys.modules.items()):
        if name.startswith(("orchestrator.", __name__)):
            for attribute, value in list(vars(module).items()):
                if inspect.isfunction(value) and value in replaced:
                    monkeypatch.setattr(module, attribute, replaced[value])
    return len(replaced)


def _of(letters: Callable[..., str], returns: str) -> Callable[..., Any]:
    if returns == "str":
        return letters
    kind: Callable[[list[str]], Any] = {"I": iter, "t": tuple, "l": list}[returns[0]]
    return lambda *_, **__: kind([letters()])


def rate(plan: Plan) -> float:
    """Returns a made-up speed, different for each plan."""
    return 10.0 * plan.micro_batch ** (0.9 if plan.batching == "packed" else 0.4) - plan.zero_stage


def outcome_of(run: Run) -> Outcome:
    """Returns an outcome by the plan; the fastest plan fails its validation."""
    plan = run.request.plan
    if plan.micro_batch >= 8 and plan.zero_stage < 2:
        return make_oom(1.2)
    if run.request.validation and plan.micro_batch >= 8:
        return make_oom(1.1, phase="evaluation")
    return make_measured(rate(plan), 0.1 * plan.micro_batch)


def swept(folder: Path) -> list[Event]:
    """Runs a sweep with crashes, a lost node, and validations, and returns its events."""
    spec = make_spec(
        study={"folder": str(folder), "sampler": "plimsoll"},
        budget={"trials": 10, "minutes": 60, "trial_seconds": 60, "patience": 8},
        validation={"enabled": True, "repeats": 0},
    )
    folder.mkdir()
    file = EventFile(folder / "events.jsonl", lambda _: None)
    cluster = PlayedCluster(make_nodes("a", "b", "c"))
    sweep = Sweep(spec, cluster, callbacks=(PlainView(io.StringIO()), file))
    count = 0
    while (run := sweep.next()) is not None:
        count += 1
        if count in (3, 4, 9):
            sweep.report(run, DIED)
        elif count == 6:
            assert run.placement is not None
            sweep.report(run, DIED, *run.placement.nodes)
        else:
            sweep.report(run, outcome_of(run))
    file.close()
    assert any(event.record.validation for event in sweep.events(TrialEnded))
    return [event for event, _ in sweep.recorder.heard]


def explained() -> Iterator[object]:
    """Yields what explanations decide."""
    tried = (
        (a_plan(zero_stage=2), measured(20.0, 40)),
        (a_plan(micro_batch=4), measured(50.0, 60)),
        (a_plan(micro_batch=4, checkpoint_ratio=1.0), measured(49.5, 35)),
        (a_plan(zero_stage=2, micro_batch=4), out_of_memory(90)),
    )
    state = a_state(tried)
    assert state.best is not None
    context = a_ground(state)
    best = explain_best(state, state.best, context)
    render_best(best, state)
    yield best
    for record in state.records:
        explanation = explain_trial(state, record, context)
        render_trial(explanation, state)
        yield explanation
    for knobs in ({"zero_stage": 2}, {"micro_batch": 3}, {"checkpoint_ratio": 0.5}, {"tensor": 2}):
        yield explain_untried(knobs, context)


def test_a_sweep_decides_the_same_whatever_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, explanations = swept(tmp_path / "words"), list(explained())

    assert scramble(monkeypatch) > 60
    assert "worker" not in outcome_sentence(DIED)
    assert "best" not in best_sentence(a_state([(a_plan(), measured(20.0, 40))]))
    reworded, again = swept(tmp_path / "letters"), list(explained())

    assert reworded[1:] == events[1:]  # the first holds the specification, with its folder
    assert again == explanations
