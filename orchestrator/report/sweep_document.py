"""The report of a sweep: the best plan first, then the evidence and every trial."""

from collections.abc import Iterator

from rich.console import RenderableType

from orchestrator.core.objective import outcome_counts
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.explain.effects import single_changes
from orchestrator.explain.winner import levers
from orchestrator.report import sweep_tables, sweep_text
from orchestrator.report.format import duration, gib, plural
from orchestrator.report.html import render_page
from orchestrator.report.labels import counts_words, fixed_words
from orchestrator.report.reasons import stop_words
from orchestrator.report.sections import Code, Document, Section
from orchestrator.report.sweep_charts import sweep_charts
from orchestrator.report.terminal import render_text
from orchestrator.report.understood import understood_rows
from search_spaces.safety.redaction import HIDDEN
from search_spaces.specification.load import spec_to_yaml

_REPEAT = "plimsoll tune sweep.yaml\nplimsoll export sweep.yaml\nplimsoll report sweep.yaml"


def report_page(state: SweepState, context: ForecastContext | None = None, note: str = "") -> str:
    """Renders the HTML of the page, with its scripts; `note` says why there are no forecasts."""
    document = sweep_document(state, context, note)
    return render_page(document, sweep_charts(state, context))


def render_report(state: SweepState, ui_command: str) -> RenderableType:
    """Renders the report for terminals; `ui_command` opens MLflow on the sweep, if tracked."""
    return render_text(sweep_document(state, ui_command=ui_command))


def sweep_document(
    state: SweepState,
    context: ForecastContext | None = None,
    note: str = "",
    *,
    ui_command: str = "",
) -> Document:
    """Reports a sweep: the best plans, their speed-up, the outcomes and the rules that applied."""
    headline = sweep_text.best_sentence(state)
    if state.best is not None:
        headline += f"; {sweep_text.speedup_sentence(state)}"
    note = f"there are no forecasts: {note}" if note else ""
    return Document(
        title=f"plimsoll {state.study}: {state.spec.model.title}",
        headline=headline,
        facts=tuple(_facts(state)),
        understood=understood_rows(state.understanding) if state.understanding else (),
        notes=tuple(filter(None, (note, sweep_text.lossy_sentence(state)))),
        sections=(*_best(state, context), *_trials(state), *_reproduction(state, ui_command)),
    )


def _facts(state: SweepState) -> Iterator[str]:
    spec, trials = state.spec, plural(len(state.records), "trial")
    yield (
        f"{spec.model.title}: global batch {spec.train.global_batch}, sequence length"
        f" {spec.train.sequence_length}, {spec.train.optimizer}, {spec.train.precision}"
    )
    if (machine := state.last_fingerprint) is not None:
        hosts = plural(machine.hosts, "host")
        yield f"on {machine.device} {machine.device_name}, {hosts}"
    if state.resumed:
        everything = state.resumed == len(state.records)
        trials += f", {'all' if everything else state.resumed} from earlier runs"
    counts = counts_words(outcome_counts(state.records))
    yield f"{trials}: {counts}" if counts else trials
    if hidden := sum(repr(record.outcome).count(HIDDEN) for record in state.records):
        yield f"{plural(hidden, 'secret')} taken out of the messages of trials, shown as {HIDDEN}"
    if state.ended is not None:
        own = state.records[state.resumed :]
        began_at = min((record.started_at for record in own), default=state.started_at)
        elapsed = duration(state.ended.at - began_at)
        yield f"ended after {elapsed}: {stop_words(state.ended.reason)}"
        if compile_seconds := state.ended.compile_seconds:
            compiled = duration(compile_seconds)
            yield f"before that, DeepSpeed's operators took {compiled} to compile, once"
        if start_seconds := state.ended.start_seconds:
            started = duration(start_seconds)
            yield f"before that, the first workers took {started} to start; no budget counts it"


def _best(state: SweepState, context: ForecastContext | None) -> Iterator[Section]:
    best = state.best
    if best is not None:
        yield Section(title="Evidence", blocks=tuple(sweep_text.evidence_sentences(state)))
        yield Section(title="Best plans", blocks=(sweep_tables.best_table(state), *_legend(state)))
    yield Section(
        title="Every trial: speed against memory",
        chart="trials",
        caption="The solid line marks usable memory, the dotted line the memory limit. Trials that"
        " ran out of memory lie on the limit, at their forecast speed.",
    )
    if best is None:
        return
    if (front := sweep_tables.front_table(state)) is not None:
        title = "Pareto front: no plan is better than these in every metric"
        yield Section(title=title, blocks=(front,))
    if effects := single_changes(best, state.by_plan, context):
        title = "Effect of each knob: the best plan over plans that differ in it alone"
        yield Section(title=title, blocks=(sweep_tables.effects_table(effects),))
    if len(path := tuple(levers(state, context))) > 1:
        title = "What just happened: from the baseline to the best plan, one change at a time"
        yield Section(title=title, blocks=sweep_tables.levers_blocks(path))
    yield Section(
        title="Peak memory of the best plan",
        chart="memory",
        caption="Measured peak of the fullest rank by category, with usable memory (solid line) and"
        " the memory limit (dotted).",
        blocks=(sweep_tables.anatomy_table(best),),
    )


def _legend(state: SweepState) -> Iterator[str]:
    share = f"{100 * (1 - state.objective.headroom):.0f} %"
    if limit := state.memory_limit_bytes:
        usable = state.objective.usable_bytes(limit)
        share = f"{100 * usable / limit:.0f} %"
        yield f"usable memory: {gib(usable)} GiB per rank, {share} of the limit of {gib(limit)} GiB"
    else:
        yield f"usable memory: {share} of the limit"
    if common := fixed_words(state.space):
        yield f"all plans: {common}"
    judgements = (
        sweep_text.equals_sentence(state),
        sweep_text.compile_sentence(state),
        sweep_text.forecast_sentence(state),
    )
    yield from filter(None, judgements)


def _trials(state: SweepState) -> Iterator[Section]:
    phases = "Measured time of the first rank by phase."
    yield Section(title="Time per step", chart="time", caption=phases)
    progress = "Each trial at the time it ended, and the best feasible plan so far."
    yield Section(title="Search progress", chart="progress", caption=progress)
    if state.records:
        yield Section(title="Trial outcomes", blocks=(sweep_tables.outcomes_table(state),))
        title = "Every trial and why it was tried"
        yield Section(title=title, blocks=(sweep_tables.trials_table(state),), folded=True)


def _reproduction(state: SweepState, ui_command: str) -> Iterator[Section]:
    machine = state.last_fingerprint
    words = "no trial has reported its machine"
    if machine is not None:
        facts = (*machine.versions, *machine.environment)
        versions = ", ".join(f"{name} {fact}" for name, fact in facts if fact)
        words = (
            f"{machine.device_name} ({machine.device}, {gib(machine.device_memory_bytes)} GiB),"
            f" {plural(machine.hosts, 'host')}; Python {machine.python}, {versions}"
        )
    yield Section(
        title="Machine and reproduction",
        blocks=(
            words,
            "To repeat the sweep, save the specification below as sweep.yaml and run:",
            Code(text=_REPEAT),
            Code(text=spec_to_yaml(state.spec)),
        ),
        folded=True,
    )
    if ui_command:
        yield Section(title="Compare the trials in MLflow", blocks=(Code(text=ui_command),))
