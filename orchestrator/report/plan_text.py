"""Sentences of planning reports, the same for the terminal, the page and messages."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from orchestrator.explain.untried import UntriedExplanation
from orchestrator.forecast import planning_notes as notes
from orchestrator.forecast.planner import PlanningReport, ScaleResult
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.format import count_words, gib, significant
from orchestrator.report.labels import fixed_knobs, fixed_words, lossy_suffix, plan_words
from orchestrator.report.reasons import sentence
from search_spaces.costs.host_memory import HOST_SHARE
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.safety.files import packaged_table
from search_spaces.space import Space
from search_spaces.trial import Estimate, PlanForecast

TERM_WORDS: Mapping[str, str] = packaged_table(__package__, "words.yaml")["terms"]
_MOST_OBJECTIONS = 3
CATEGORY_WORDS: Mapping[str, str] = packaged_table(__package__, "words.yaml")["categories"]


def term_words(name: str) -> str:
    """Names a term of the step time."""
    return TERM_WORDS.get(name, name.replace("_", " "))


def category_words(name: str) -> str:
    """Names a category of memory."""
    return CATEGORY_WORDS.get(name, name.replace("_", " "))


def interval(estimate: Estimate) -> str:
    """Formats the interval of an estimate: `48 to 63`."""
    return f"{_brief(estimate.low)} to {_brief(estimate.high)}"


def _brief(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:#.2g}"


def forecast_sentence(forecast: PlanForecast) -> str:
    """Formats a forecast: `50 samples/s (48 to 53), peak 60 GiB (55 to 64), 93 % likely to fit`."""
    rate, peak = forecast.samples_per_second, forecast.peak_bytes
    host = f", {gib(forecast.host_bytes)} GiB of host memory per node"
    return (
        f"{significant(rate.value)} samples/s ({interval(rate)}), peak {gib(peak.value)} GiB"
        f" ({gib(peak.low)} to {gib(peak.high)}), {percent(forecast.fits)} likely to fit"
    ) + (host if forecast.host_bytes else "")


def percent(share: float) -> str:
    """Formats a share as a whole percentage that never rounds to 0 or 100."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def subject_words(report: PlanningReport) -> str:
    """Names the model and the devices: `gpt2 on 8 x H100-80-SXM`.

    A model whose configuration the specification changes is named by its parameters.
    """
    model = report.model
    if report.changed:
        count = count_words(report.parameters)
        model = f"{report.architecture} of {count} parameters ({model}, changed by model.config)"
    return f"{model} on {report.recommendation.ranks:,} x {report.device}"


def expected_words(row: ForecastRow, *, omit: Collection[str] = ()) -> str:
    """Returns the short name of a plan, with a label if it is lossy."""
    return plan_words(row.plan, omit=omit) + lossy_suffix(row.plan, row.lossy)


def answer_sentence(report: PlanningReport) -> str:
    """Answers in one sentence: the best plan, or how far the closest one is from fitting."""
    where, best, nearest = subject_words(report), report.best, report.recommendation.nearest
    if best is None:
        assert nearest is not None
        needs = memory_words(nearest, report)
        return f"{where}: no plan fits; the closest plan ({expected_words(nearest)}) {needs}"
    rate = best.forecast.samples_per_second
    memory = f"{gib(best.forecast.peak_bytes.value)} of {gib(report.limit_bytes)} GiB"
    if best.forecast.host_bytes:
        host = gib(best.forecast.host_bytes), gib(report.node_host_bytes)
        memory += " and, per node, {} of {} GiB of host memory".format(*host)
    fits = f"{report.tokens:,} tokens are the longest that fit;" if report.lengths else "yes,"
    return (
        f"{where}: {fits} about {significant(rate.value)} samples/s"
        f" ({interval(rate)}) with {expected_words(best)}; {memory};"
        f" limited by {term_words(best.forecast.limited_by)}"
    )


def memory_words(row: ForecastRow, room: PlanningReport | UntriedExplanation) -> str:
    """Compares the memory that a plan needs with the room there is: of a host, or of a device."""
    forecast, host_bytes = row.forecast, row.forecast.host_bytes
    if host_bytes > HOST_SHARE * room.node_host_bytes:
        usable = HOST_SHARE * room.node_host_bytes
        return (
            f"needs {gib(host_bytes)} GiB of host memory per node, which has"
            f" {gib(room.node_host_bytes)}: with a tenth kept free,"
            f" {gib(host_bytes - usable)} GiB are lacking"
        )
    return (
        f"needs {gib(forecast.peak_bytes.value)} GiB per device and is {percent(forecast.fits)}"
        f" likely to fit; usable are {gib(room.line_bytes)} of {gib(room.limit_bytes)} GiB"
    )


def ruled_out_sentences(result: ScaleResult) -> Iterator[str]:
    """Counts the combinations by status, and those ruled out by rule."""
    combinations = result.plans + sum(count for _, count in result.ruled_out)
    unsure = result.plans - result.fitting - result.cannot_fit - result.unhosted
    unhosted = f", {result.unhosted:,} too large for host memory" if result.unhosted else ""
    yield (
        f"{combinations:,} combinations: {result.fitting:,} recommended,"
        f" {result.cannot_fit:,} certain not to fit, {unsure:,} over usable memory or too close to"
        f" the limit{unhosted}"
    )
    if result.ruled_out:
        most = sorted(result.ruled_out, key=lambda entry: -entry[1])
        ruled = ", ".join(f"{count:,} by {name.replace('_', ' ')}" for name, count in most)
        yield f"ruled out: {ruled}"
        reasons = dict(result.objections)
        for name in [name for name, _ in most if name in reasons][:_MOST_OBJECTIONS]:
            yield f"{name.replace('_', ' ')}, for example: {reasons[name]}"


def planning_note_words(note: notes.PlanningNote) -> str:
    """Describes a caveat of a report."""
    match note:
        case notes.MemoryLimit(device=device, specified_bytes=specified, device_bytes=has):
            if specified > has:
                return (
                    f"cluster.memory_gib is {gib(specified)}, but each {device} has {gib(has)} GiB,"
                    " which is the limit"
                )
            return f"cluster.memory_gib limits each {device} to {gib(specified)} of {gib(has)} GiB"
        case notes.AssumedHostMemory(device=device, node_bytes=node_bytes):
            return (
                f"a node with {device} is assumed to have {gib(node_bytes)} GiB of host memory;"
                " --host-memory or cluster.host_memory_gib says how much it has"
            )
        case notes.AssumedRates(terms=terms, share=share):
            return (
                f"{percent(share)} of the best plan's step rests on rates of a typical server"
                f" ({', '.join(map(term_words, terms))}); plimsoll doctor --probe measures yours"
            )
        case _:
            return sentence(note)


def common_knobs(plans: Sequence[Plan]) -> tuple[frozenset[str], str]:
    """Names the knobs to leave out in a table of these plans, which share them, and their words."""
    if len(plans) < 2:
        return frozenset(), ""
    table = PlanTable.of(plans)
    domains = tuple((knob.name, table.values[knob.name]) for knob in KNOBS)
    space = Space(domains=domains, table=table, ruled_out=(), baseline=plans[0])
    return fixed_knobs(space), fixed_words(space)
