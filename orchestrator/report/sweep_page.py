"""The page of a sweep: the best plan first, then the evidence and every trial."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.objective import memory_of
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.effects import KnobEffect
from orchestrator.report.format import duration, gib, mfu_words, number, plural, spread
from orchestrator.report.html import Table, Tile, render_page
from orchestrator.report.labels import (
    KIND_WORDS,
    fixed_knobs,
    labelled_plan,
    record_words,
)
from orchestrator.report.page_data import (
    ReportData,
    ablation,
)
from orchestrator.report.reasons import reason_words, stop_words
from orchestrator.report.sweep_charts import figures
from orchestrator.report.sweep_text import (
    best_sentence,
    budget_sentence,
    equals_sentence,
    evidence_sentences,
    forecast_sentence,
    lossy_sentence,
    speedup_sentence,
)
from orchestrator.report.understood import understood_table
from search_spaces.spec.load import spec_to_yaml
from search_spaces.trial import Measured


def report_page(data: ReportData) -> str:
    """Renders the HTML of the page, which includes all its scripts and styles."""
    state = data.state
    return render_page(
        "sweep.jinja",
        title=f"plimsoll {state.study}: {state.spec.model.name}",
        figures=figures(data),
        headline=_headline(data),
        conditions=_conditions(state),
        understood=state.understanding and understood_table(state.understanding),
        warnings=tuple(_warnings(data)),
        best_tiles=() if data.best is None else tuple(_tiles(data.best)),
        evidence=() if data.best is None else tuple(_evidence(state)),
        changes=_changes(data),
        trials=_trials(state),
        machine=_machine(state),
        specification=spec_to_yaml(state.spec),
    )


def _headline(data: ReportData) -> str:
    best, state = data.best, data.state
    if best is None:
        return _sentence(best_sentence(state))
    validated = "not validated" if state.validated is None else "validated in a fresh worker group"
    words = labelled_plan(best.plan, state.spec)
    memory, outcome = memory_of(best), best.outcome
    assert isinstance(outcome, Measured)
    first = (
        f"Trial {best.number} is best, {validated}: {words} trains"
        f" {spread(outcome.samples_per_second)} samples/s with a peak of"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit."
    )
    return f"{first} {_sentence(speedup_sentence(state))}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _conditions(state: SweepState) -> str:
    train, spec = state.spec.train, state.spec
    job = (
        f"{spec.model.name}: global batch {train.global_batch}, sequence length"
        f" {train.sequence_length}, {train.optimizer}, {train.precision};"
        f" {plural(len(state.records), 'trial')}"
    )
    machine = state.last_fingerprint
    where = ""
    if machine is not None:
        where = f" on {machine.device_name}, {plural(machine.hosts, 'host')}"
    if state.ended is None:
        span = budget_sentence(state)
        return f"{job}{where}" + (f"; {span}" if span else "")
    elapsed = duration(state.ended.at - state.started_at)
    return f"{job}{where}; ended after {elapsed}: {stop_words(state.ended.reason)}"


def _warnings(data: ReportData) -> Iterator[str]:
    if data.note:
        yield data.note
    if data.best is not None and (lossy := lossy_sentence(data.state)):
        yield lossy


def _tiles(best: Record) -> Iterator[Tile]:
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    rate, step, memory = outcome.samples_per_second, outcome.step_seconds, outcome.memory
    interval = f"{number(rate.low)} to {number(rate.high)}"
    samples = plural(best.plan.global_batch, "sample")
    yield Tile(name="samples/s", value=number(rate.value), detail=interval)
    tokens = f"{outcome.tokens_per_second:,.0f}"
    yield Tile(name="tokens/s", value=tokens, detail="without padding")
    yield Tile(name="MFU", value=mfu_words(outcome.mfu))
    yield Tile(name="seconds per step", value=number(step.value), detail=samples)
    limit = f"of {gib(memory.limit_bytes)}"
    yield Tile(name="peak, GiB", value=gib(memory.peak_bytes), detail=limit)
    if best.forecast and (host := best.forecast.host_bytes):
        yield Tile(name="host memory, GiB", value=gib(host), detail="per node, forecast")
    yield Tile(name="ranks", value=str(best.plan.world_size))


def _evidence(state: SweepState) -> Iterator[str]:
    warned = lossy_sentence(state)
    yield from (sentence for sentence in evidence_sentences(state) if sentence != warned)
    if equal := equals_sentence(state):
        yield equal.removeprefix("= ")  # this mark belongs to the table of the terminal
    if forecasts := forecast_sentence(state):
        yield forecasts


def _changes(data: ReportData) -> Table | None:
    effects = ablation(data)
    if not effects:
        return None
    return Table(
        columns={
            "change": "words",
            "samples/s": "number",
            "peak GiB": "number",
            "source": "words",
        },
        rows=tuple(map(_effect_row, effects)),
    )


def _effect_row(effect: KnobEffect) -> tuple[str, str, str, str]:
    speed = "-" if effect.ratio is None else f"{100 * speed_change(effect):+.1f} %"
    memory = "-" if effect.peak_bytes is None else f"{-effect.peak_bytes / 2**30:+.3f}"
    if effect.trial is None:
        source = "unknown" if effect.ratio is None else "forecast"
        source += "" if effect.keeps_headroom is not False else ", may not fit"
    else:
        outcome = KIND_WORDS[effect.outcome_kind or "measured"]
        source = f"trial {effect.trial}" + (f": {outcome}" if outcome else "")
    return change_words(effect), speed, memory, source


def change_words(effect: KnobEffect) -> str:
    """Formats the change of a knob: `micro_batch 8 → 4`."""
    change = effect.change
    return f"{change.knob} {change.value} → {change.other_value}"


def speed_change(effect: KnobEffect) -> float:
    """Returns the relative change in speed, -0.25 for a quarter less."""
    assert effect.ratio is not None
    return 1 / effect.ratio.value - 1


def _trials(state: SweepState) -> Table:
    omit = fixed_knobs(state.space)
    return Table(
        columns={
            "trial": "number",
            "plan": "plan",
            "outcome": "words",
            "reason to try it": "words",
        },
        rows=tuple(
            (
                str(record.number),
                labelled_plan(record.plan, state.spec, omit=omit),
                record_words(record),
                reason_words(record.reason),
            )
            for record in (*state.records, *state.validations)
        ),
    )


def _machine(state: SweepState) -> str:
    machine = state.last_fingerprint
    if machine is None:
        return ""
    facts = (*machine.versions, *machine.environment)
    versions = ", ".join(f"{name} {fact}" for name, fact in facts if fact)
    return (
        f"{machine.device_name} ({machine.device}, {gib(machine.device_memory_bytes)} GiB),"
        f" {plural(machine.hosts, 'host')}; Python {machine.python}, {versions}"
    )
