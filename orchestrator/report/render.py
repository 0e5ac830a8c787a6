"""The report of a sweep, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from orchestrator.core.state import SweepState
from orchestrator.report.beside import beside_sentence
from orchestrator.report.sentences import (
    answer,
    budget_sentence,
    compile_sentence,
    equals_sentence,
    forecast_sentence,
    left_sentence,
    lossy_sentence,
    speedup_sentence,
)
from orchestrator.report.tables import (
    anatomy_table,
    best_table,
    ends_table,
    front_table,
    rules_table,
)
from orchestrator.view.plan_words import fixed_words
from orchestrator.view.proof_words import proof_sentences
from orchestrator.view.words import duration, gib, plural

_INDENT = (0, 0, 0, 2)


def render_report(state: SweepState, ui_command: str) -> RenderableType:
    """The best plans, how much faster they are, what failed and why, and where to look on.

    Args:
        state: The sweep, ended or rebuilt from its study.
        ui_command: The command that opens MLflow on it; empty if it is not tracked.
    """
    parts: list[RenderableType] = [Rule(Text(f"plimsoll {state.study}"), align="left")]
    parts += [Text(line) for line in _heading(state)]
    parts += _section("Answer", *(Text(line, "bold") for line in _answer(state)))
    if state.best is not None:
        parts += _section("Best plans", best_table(state), *map(Text, _legend(state)))
        if (several := front_table(state)) is not None:
            parts += _section("Front: none of these is beaten in all of its figures", several)
        parts += _section("Peak memory of the best plan", anatomy_table(state.best))
    if state.records:
        parts += _section("How the trials ended", ends_table(state))
    if state.space.ruled_out:
        parts += _section("Ruled out before any trial", rules_table(state))
    if ui_command:
        command = Text(ui_command, "bold", no_wrap=True, overflow="ignore")  # to be copied whole
        parts += _section("Compare the trials in MLflow", command)
    return Group(*parts)


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold cyan")
    for part in content:
        yield Padding(part, _INDENT, expand=False)


def _heading(state: SweepState) -> Iterator[str]:
    spec = state.spec
    yield (
        f"{spec.model.name}: global batch {spec.train.global_batch}, sequence length"
        f" {spec.train.sequence_length}, {spec.train.optimizer}, {spec.train.precision}"
    )
    fingerprint = state.fingerprint or next(
        (record.fingerprint for record in reversed(state.records) if record.fingerprint), None
    )
    if fingerprint is not None:
        hosts = plural(fingerprint.hosts, "host")
        yield f"on {fingerprint.device} {fingerprint.device_name}, {hosts}"
    if state.resumed and state.resumed == len(state.records):
        yield f"{plural(len(state.records), 'trial')} of the study, none of them new"
    elif state.resumed:
        yield f"{plural(len(state.records), 'trial')}, {state.resumed} of them from earlier runs"
    else:
        yield plural(len(state.records), "trial")
    if state.ended is not None:
        took = duration(state.ended.at - state.started_at)
        yield f"ended after {took}: {state.ended.reason}"
    elif spent := budget_sentence(state):
        yield spent


def _answer(state: SweepState) -> Iterator[str]:
    yield answer(state)
    if state.best is not None:
        yield from proof_sentences(state)
        yield speedup_sentence(state)
        if lossy := lossy_sentence(state):
            yield lossy
        if beside := beside_sentence(state):
            yield beside
        if left := left_sentence(state):
            yield left


def _legend(state: SweepState) -> Iterator[str]:
    headroom = state.spec.objective.headroom
    kinds = {record.plan.accelerator for record in state.records}
    limit = state.memory_limit_bytes if len(kinds) < 2 else None  # each has its own
    share = f"{100 * (1 - headroom):.0f} %"
    if limit:
        line = gib(limit * (1 - headroom))
        yield f"the line: {line} GiB, {share} of the limit of {gib(limit)} GiB per rank"
    else:
        yield f"the line: {share} of the limit"
    if common := fixed_words(state.space):
        yield f"all plans: {common}"
    if equal := equals_sentence(state):
        yield equal
    if compiling := compile_sentence(state):
        yield compiling
    if expected := forecast_sentence(state):
        yield expected
