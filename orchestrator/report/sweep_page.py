"""The report as one page: what was found, why, and what it rests on, the answer first."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.state import SweepState
from orchestrator.explain.effects import KnobEffect
from orchestrator.report.format import duration, gib, number, plural, spread
from orchestrator.report.html import Table, Tile, render_page
from orchestrator.report.labels import (
    KIND_WORDS,
    fixed_knobs,
    labelled_words,
    record_words,
    validation_sentences,
)
from orchestrator.report.page_data import (
    ReportData,
    SpeedComparison,
    ablation,
    accounting,
    comparisons,
    memory_of,
)
from orchestrator.report.sweep_charts import change_words, figures, lost
from orchestrator.report.sweep_text import (
    answer,
    budget_sentence,
    contention_sentence,
    equals_sentence,
    forecast_sentence,
    lossy_sentence,
    regret_sentence,
    speedup_sentence,
)
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, Measured, Record


def report_page(told: ReportData) -> str:
    """The HTML of the page; all scripts and styles are in it."""
    state = told.state
    return render_page(
        "sweep.jinja",
        title=f"plimsoll {state.study}: {state.spec.model.name}",
        figures=figures(told),
        headline=_headline(told),
        conditions=_conditions(state),
        warnings=tuple(_warnings(told)),
        best_tiles=() if told.best is None else tuple(_tiles(told.best)),
        grounds=() if told.best is None else tuple(_grounds(state)),
        comparison=_comparison(told),
        explain_equality=len(state.equals) > 1 and state.goal.metric != "headroom",
        changes=_changes(told),
        accounted=_accounted(told),
        accounting=_accounting(told),
        trials=_trials(state),
        machine=_machine(state),
        specification=spec_to_yaml(state.spec),
    )


def _headline(told: ReportData) -> str:
    """The answer in two sentences."""
    best = told.best
    if best is None:
        return f"{_sentence(answer(told.state))}"
    validated = (
        ", validated in workers of its own"
        if told.state.validated is not None
        else ", not validated"
    )
    words = labelled_words(best.plan, told.state.spec)
    memory, outcome = memory_of(best), best.outcome
    assert isinstance(outcome, Measured)
    first = (
        f"Trial {best.number} is the answer{validated}: {words} trains"
        f" {spread(outcome.samples_per_second)} samples/s with a peak of"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit."
    )
    start = next((one for one in comparisons(told) if one.role.startswith("what one")), None)
    second = _sentence(speedup_sentence(told.state)) if start is None else _gain(start)
    return f"{first} {second}"


def _gain(start: SpeedComparison) -> str:
    faster = "" if start.faster is None else _more(start.faster.value, "faster", "slower")
    saved = "" if start.saved is None else _more(start.saved, "less memory", "more memory")
    both = f"{faster}, with {saved}" if faster and saved else faster or saved
    return f"That is {both} than the plan that one would start with."


def _more(share: float, more: str, less: str) -> str:
    return f"{abs(100 * share):.0f} % {more if share >= 0 else less}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _conditions(state: SweepState) -> str:
    train, spec = state.spec.train, state.spec
    told = (
        f"{spec.model.name}: global batch {train.global_batch}, sequence length"
        f" {train.sequence_length}, {train.optimizer}, {train.precision};"
        f" {plural(len(state.records), 'trial')}"
    )
    seen = _fingerprint(state)
    where = "" if seen is None else f" on {seen.device_name}, {plural(seen.hosts, 'host')}"
    if state.ended is None:
        spent = budget_sentence(state)
        return f"{told}{where}" + (f"; {spent}" if spent else "")
    took = duration(state.ended.at - state.started_at)
    return f"{told}{where}; ended after {took}: {state.ended.reason}"


def _warnings(told: ReportData) -> Iterator[str]:
    if told.note:
        yield told.note
    if told.best is not None and (lossy := lossy_sentence(told.state)):
        yield lossy


def _tiles(best: Record) -> Iterator[Tile]:
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    rate, step, memory = outcome.samples_per_second, outcome.step_seconds, outcome.memory
    interval = f"{number(rate.low)} to {number(rate.high)}"
    mfu = "-" if outcome.mfu is None else f"{100 * outcome.mfu:.0f} %"
    samples = plural(best.plan.global_batch, "sample")
    yield Tile(name="samples/s", value=number(rate.value), detail=interval)
    tokens = f"{outcome.tokens_per_second:,.0f}"
    yield Tile(name="tokens/s", value=tokens, detail="without padding")
    yield Tile(name="MFU", value=mfu)
    yield Tile(name="seconds a step", value=number(step.value), detail=samples)
    limit = f"of {gib(memory.limit_bytes)}"
    yield Tile(name="peak, GiB", value=gib(memory.peak_bytes), detail=limit)
    yield Tile(name="ranks", value=str(best.plan.world_size))


def _grounds(state: SweepState) -> Iterator[str]:
    yield from validation_sentences(state)
    yield speedup_sentence(state)
    if equal := equals_sentence(state):
        yield equal.removeprefix("= ")  # the mark that the table of the terminal has
    told = (contention_sentence, regret_sentence, forecast_sentence)
    yield from filter(None, (sentence(state) for sentence in told))


def _comparison(told: ReportData) -> Table | None:
    best, compared = told.best, tuple(comparisons(told))
    if best is None or not compared:
        return None
    rows = [_row(best, told.state.spec, "the answer", "", "")]
    for one in compared:
        faster = "-"
        if one.faster is not None:
            low, high = 100 * one.faster.low, 100 * one.faster.high
            faster = f"{100 * one.faster.value:+.0f} % ({low:+.0f} to {high:+.0f})"
        saved = "-" if one.saved is None else f"{round(-100 * one.saved):+d} %"
        rows.append(_row(one.other, told.state.spec, one.role, faster, saved))
    return Table(
        columns={
            "what": "words",
            "plan": "plan",
            "samples/s": "number",
            "peak GiB": "number",
            "answer's speed": "number",
            "answer's peak": "number",
        },
        rows=tuple(rows),
    )


def _row(record: Record, spec: SweepSpec, role: str, faster: str, saved: str) -> tuple[str, ...]:
    outcome = record.outcome
    assert isinstance(outcome, Measured)
    return (
        f"{role}, trial {record.number}",
        labelled_words(record.plan, spec),
        spread(outcome.samples_per_second),
        gib(outcome.memory.peak_bytes),
        faster,
        saved,
    )


def _changes(told: ReportData) -> Table | None:
    worths = ablation(told)
    if not worths:
        return None
    return Table(
        columns={
            "change": "words",
            "samples/s": "number",
            "peak GiB": "number",
            "known from": "words",
        },
        rows=tuple(map(_worth_row, worths)),
    )


def _worth_row(worth: KnobEffect) -> tuple[str, str, str, str]:
    speed = "-" if worth.ratio is None else f"{100 * lost(worth):+.1f} %"
    memory = "-" if worth.peak_bytes is None else f"{-worth.peak_bytes / 2**30:+.3f}"
    if worth.trial is None:
        source = "nobody knows" if worth.ratio is None else "forecast"
        source += "" if worth.keeps is not False else ", not sure to fit"
    else:
        ended = KIND_WORDS.get(worth.told, worth.told)
        source = f"trial {worth.trial}" + (f": {ended}" if ended else "")
    return change_words(worth), speed, memory, source


def _accounted(told: ReportData) -> str:
    total = sum(count.plans for count in accounting(told))
    of = "combinations of the knobs' values" if told.ground is not None else "plans that were tried"
    return f"{total:,} {of}"


def _accounting(told: ReportData) -> Table:
    return Table(
        columns={"plans": "number", "what": "words", "why": "words"},
        rows=tuple(
            (f"{count.plans:,}", count.what, count.why) for count in accounting(told) if count.plans
        ),
    )


def _trials(state: SweepState) -> Table:
    omit = fixed_knobs(state.space)
    return Table(
        columns={"trial": "number", "plan": "plan", "how it ended": "words", "why": "words"},
        rows=tuple(
            (
                str(record.number),
                labelled_words(record.plan, state.spec, omit=omit),
                record_words(record),
                record.why,
            )
            for record in (*state.records, *state.validations)
        ),
    )


def _machine(state: SweepState) -> str:
    """The hardware that the trials ran on; empty where no worker told."""
    seen = _fingerprint(state)
    if seen is None:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in seen.versions)
    return (
        f"{seen.device_name} ({seen.device}, {gib(seen.device_memory_bytes)} GiB),"
        f" {plural(seen.hosts, 'host')}; Python {seen.python}, {versions}"
    )


def _fingerprint(state: SweepState) -> Fingerprint | None:
    kept = (record.fingerprint for record in reversed(state.records) if record.fingerprint)
    return state.fingerprint or next(kept, None)
