"""The report as one page: what was found, why, and what it rests on, the answer first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from orchestrator.core.state import SweepState
from orchestrator.explaining.changes import Worth
from orchestrator.report.beside import beside_sentence
from orchestrator.report.sentences import (
    answer,
    budget_sentence,
    equals_sentence,
    forecast_sentence,
    left_sentence,
    lossy_sentence,
    speedup_sentence,
)
from orchestrator.report_page.figures import figures
from orchestrator.report_page.plan_charts import change_words, lost
from orchestrator.report_page.told import (
    Against,
    Told,
    ablation,
    accounting,
    comparisons,
    memory_of,
)
from orchestrator.view.html import bullets, chart, notes, table, tiles, whole_page
from orchestrator.view.plan_words import fixed_knobs, labelled_words
from orchestrator.view.proof_words import proof_sentences
from orchestrator.view.words import KIND_WORDS, duration, gib, number, plural, record_words, spread
from search_spaces.outcome import Measured
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec

_EQUAL = (
    "Statistically equal are plans whose intervals overlap that of the fastest. Trials of one plan"
    " differ by more than a trial can tell of itself, so that a difference is no proof where its"
    " own interval, in brackets, leaves zero out. Of equals, the one with the lowest peak is proven"
    " first, and is the answer if its proof holds."
)
_CHARTS: Mapping[str, tuple[str, str]] = {
    "trials": (
        "Every trial: speed against memory",
        "The line to stay below is solid, the device's end dotted. What ran out of memory lies on"
        " the end, at the speed that was forecast.",
    ),
    "knobs": (
        "What each knob is worth",
        "The answer with this knob alone changed: how much faster or slower it is then. Dark bars"
        " were measured, pale ones are forecast, corrected by the trials; what is forecast not to"
        " keep the head-room, or not surely, was no rival.",
    ),
    "memory": (
        "Memory by category",
        "What the fullest rank held at its peak, measured, against the line and the device's end.",
    ),
    "time": ("Time of a step", "What the first rank's time was spent on, measured."),
    "terms": (
        "Time of a step, by what limits it",
        "The same plans by forecast, corrected by the trials: what measured seconds are made of.",
    ),
    "losses": (
        "It trains the same",
        "Losses of the answer's proof on those of the reference plan: same samples, same seed.",
    ),
    "progress": (
        "The search",
        "Each trial when it ended, and the best so far of those that keep to what was asked.",
    ),
    "forecasts": (
        "Forecast and measured",
        "Each trial as it was forecast before it ran. What did not end as measured lies at the"
        " bottom.",
    ),
}


def report_page(told: Told) -> str:
    """The HTML of the page; all scripts and styles are in it."""
    drawn = figures(told)
    title = f"plimsoll {told.state.study}: {told.state.spec.model.name}"
    return whole_page(title, _body(told, drawn), drawn)


def _body(told: Told, drawn: Mapping[str, object]) -> Iterator[str]:
    state = told.state
    yield f"<h1>{escape(_headline(told))}</h1>"
    yield f'<p class="caption">{escape(_what(state))}</p>'
    yield from notes(_notes(told))
    if told.best is not None:
        yield from tiles(_tiles(told.best))
        yield from bullets("What that rests on", _grounds(state))
        yield from _against(told)
    for name in ("trials", "knobs"):
        yield from _chart(name, drawn)
    yield from _worths(told)
    for name in ("memory", "time", "terms", "losses", "progress", "forecasts"):
        yield from _chart(name, drawn)
    yield from _accounting(told)
    yield from _every_trial(state)
    yield from _environment(state)


def _headline(told: Told) -> str:
    """The answer in two sentences."""
    best = told.best
    if best is None:
        return f"{_sentence(answer(told.state))}"
    proven = ", proven in workers of its own" if told.state.proven is not None else ", not proven"
    words = labelled_words(best.plan, told.state.spec)
    memory, outcome = memory_of(best), best.outcome
    assert isinstance(outcome, Measured)
    first = (
        f"Trial {best.number} is the answer{proven}: {words} trains"
        f" {spread(outcome.samples_per_second)} samples/s with a peak of"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit."
    )
    start = next((one for one in comparisons(told) if one.role.startswith("what one")), None)
    second = _sentence(speedup_sentence(told.state)) if start is None else _gain(start)
    return f"{first} {second}"


def _gain(start: Against) -> str:
    faster = "" if start.faster is None else _more(start.faster.value, "faster", "slower")
    saved = "" if start.saved is None else _more(start.saved, "less memory", "more memory")
    both = f"{faster}, with {saved}" if faster and saved else faster or saved
    return f"That is {both} than the plan that one would start with."


def _more(share: float, more: str, less: str) -> str:
    return f"{abs(100 * share):.0f} % {more if share >= 0 else less}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _what(state: SweepState) -> str:
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


def _notes(told: Told) -> Iterator[str]:
    if told.note:
        yield told.note
    if told.best is not None and (lossy := lossy_sentence(told.state)):
        yield lossy


def _tiles(best: Record) -> Iterator[tuple[str, str, str]]:
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    rate, step, memory = outcome.samples_per_second, outcome.step_seconds, outcome.memory
    yield "samples/s", number(rate.value), f"{number(rate.low)} to {number(rate.high)}"
    yield "tokens/s", f"{outcome.tokens_per_second:,.0f}", "without padding"
    yield "MFU", "-" if outcome.mfu is None else f"{100 * outcome.mfu:.0f} %", ""
    yield "seconds a step", number(step.value), plural(best.plan.global_batch, "sample")
    yield "peak, GiB", gib(memory.peak_bytes), f"of {gib(memory.limit_bytes)}"
    yield "ranks", str(best.plan.world_size), ""


def _grounds(state: SweepState) -> Iterator[str]:
    yield from proof_sentences(state)
    yield speedup_sentence(state)
    if equal := equals_sentence(state):
        yield equal.removeprefix("= ")  # the mark that the table of the terminal has
    told = (beside_sentence, left_sentence, forecast_sentence)
    yield from filter(None, (sentence(state) for sentence in told))


def _against(told: Told) -> Iterator[str]:
    best, compared = told.best, list(comparisons(told))
    if best is None or not compared:
        return
    rows = [_row(best, told.state.spec, "the answer", "", "")]
    for one in compared:
        faster = "-"
        if one.faster is not None:
            low, high = 100 * one.faster.low, 100 * one.faster.high
            faster = f"{100 * one.faster.value:+.0f} % ({low:+.0f} to {high:+.0f})"
        saved = "-" if one.saved is None else f"{round(-100 * one.saved):+d} %"
        rows.append(_row(one.other, told.state.spec, one.role, faster, saved))
    head = ("what", "plan", "samples/s", "peak GiB", "answer's speed", "answer's peak")
    yield "<section><h2>The answer against the start and its equals</h2>"
    yield from table(head, rows, words=("what",))
    if len(told.state.equals) > 1 and told.state.goal.metric != "headroom":
        yield f'<p class="note">{escape(_EQUAL)}</p>'
    yield "</section>"


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


def _chart(name: str, drawn: Mapping[str, object]) -> Iterator[str]:
    if name in drawn:
        yield from chart(name, *_CHARTS[name])


def _worths(told: Told) -> Iterator[str]:
    worths = ablation(told)
    if not worths:
        return
    rows = [_worth_row(worth) for worth in worths]
    yield "<section><details><summary>Each single change, with its memory</summary>"
    head = ("change", "samples/s", "peak GiB", "known from")
    yield from table(head, rows, words=("change", "known from"))
    yield "</details></section>"


def _worth_row(worth: Worth) -> tuple[str, str, str, str]:
    speed = "-" if worth.ratio is None else f"{100 * lost(worth):+.1f} %"
    memory = "-" if worth.peak_bytes is None else f"{-worth.peak_bytes / 2**30:+.3f}"
    if worth.trial is None:
        source = "nobody knows" if worth.ratio is None else "forecast"
        source += "" if worth.keeps is not False else ", not sure to fit"
    else:
        ended = KIND_WORDS.get(worth.told, worth.told)
        source = f"trial {worth.trial}" + (f": {ended}" if ended else "")
    return change_words(worth), speed, memory, source


def _accounting(told: Told) -> Iterator[str]:
    counts = accounting(told)
    total = sum(count.plans for count in counts)
    rows = [(f"{count.plans:,}", count.what, count.why) for count in counts if count.plans]
    yield "<section><h2>What became of the whole space</h2>"
    of = "combinations of the knobs' values" if told.ground is not None else "plans that were tried"
    yield f'<p class="caption">{total:,} {of}, each counted once</p>'
    yield from table(("plans", "what", "why"), rows, words=("what", "why"))
    yield "</section>"


def _every_trial(state: SweepState) -> Iterator[str]:
    omit = fixed_knobs(state.space)
    rows = [
        (
            str(record.number),
            labelled_words(record.plan, state.spec, omit=omit),
            record_words(record),
            record.why,
        )
        for record in (*state.records, *state.proofs)
    ]
    yield "<section><details><summary>Every trial, and why it was asked for</summary>"
    yield from table(("trial", "plan", "how it ended", "why"), rows, words=("how it ended", "why"))
    yield "</details></section>"


def _environment(state: SweepState) -> Iterator[str]:
    seen = _fingerprint(state)
    yield "<section><h2>Where it was measured, and how to do it again</h2>"
    if seen is not None:
        versions = ", ".join(f"{name} {version}" for name, version in seen.versions)
        told = (
            f"{seen.device_name} ({seen.device}, {gib(seen.device_memory_bytes)} GiB),"
            f" {plural(seen.hosts, 'host')}; Python {seen.python}, {versions}"
        )
        yield f"<p>{escape(told)}</p>"
    yield "<p>With the specification below in <code>sweep.yaml</code>:</p>"
    commands = (
        "plimsoll tune sweep.yaml",
        "plimsoll export sweep.yaml",
        "plimsoll report sweep.yaml",
    )
    yield f"<pre>{escape(_lines(commands))}</pre>"
    yield f"<pre>{escape(spec_to_yaml(state.spec))}</pre></section>"


def _lines(told: Iterable[str]) -> str:
    return "\n".join(told)


def _fingerprint(state: SweepState) -> Fingerprint | None:
    kept = (record.fingerprint for record in reversed(state.records) if record.fingerprint)
    return state.fingerprint or next(kept, None)
