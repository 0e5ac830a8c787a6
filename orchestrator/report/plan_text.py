"""Forecasts in words: one wording for the terminal, the page and messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from orchestrator.forecast.alternatives import ClosestPlan
from orchestrator.forecast.memory_budgets import MemoryBudget
from orchestrator.forecast.planner import PlanningReport, ScaleResult
from orchestrator.forecast.table import Expected
from orchestrator.forecast.tiling import TileWaste
from orchestrator.report.format import gib, number
from orchestrator.report.labels import fixed_knobs, fixed_words, lossy_label, plan_words
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import Space
from search_spaces.trial import Estimate

BRIEF_TERMS: Mapping[str, str] = MappingProxyType(
    {
        "operators": "memory",
        "launches": "launches",
        "tensor_collectives": "tp talk",
        "data_collectives": "dp talk",
        "pipeline_bubble": "bubble",
        "pipeline_hops": "pp talk",
        "optimizer": "optimizer",
        "offload": "offload",
    }
)
TERM_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "matmul": "matmuls",
        "attention": "attention",
        "operators": "memory traffic",
        "launches": "kernel launches",
        "tensor_collectives": "tensor ranks talking",
        "data_collectives": "data ranks talking",
        "pipeline_bubble": "pipeline bubble",
        "pipeline_hops": "stages talking",
        "optimizer": "optimizer step",
        "offload": "offload traffic",
        "overhead": "overhead",
    }
)
CATEGORY_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer": "optimizer states",
        "gathered": "gathered weights",
        "activations": "activations",
        "temporaries": "temporaries",
        "buffers": "communication buffers",
        "outside": "context and libraries",
        "fragmentation": "fragmentation",
    }
)


def term_words(name: str) -> str:
    """A term of a step in words."""
    return TERM_WORDS.get(name, name.replace("_", " "))


def brief_term(name: str) -> str:
    """A term in a word or two, for narrow tables."""
    return BRIEF_TERMS.get(name, term_words(name))


def category_words(name: str) -> str:
    """A category of memory in words."""
    return CATEGORY_WORDS.get(name, name.replace("_", " "))


def significant(value: float) -> str:
    """A number with three significant digits, as sure as a forecast is: 55.1, 8,230."""
    if not value:
        return "0"
    return number(float(f"{value:.3g}")) if value >= 1000 else f"{value:#.3g}".rstrip(".")


def interval(estimate: Estimate) -> str:
    """The interval: `48 to 63`."""
    return f"{_brief(estimate.low)} to {_brief(estimate.high)}"


def _brief(value: float) -> str:
    """A number with two significant digits, all of them before the point."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:#.2g}"


def percent(share: float) -> str:
    """A share as a whole percentage; what is below 1 or above 99 is not made 0 or 100."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def devices(planned: PlanningReport, ranks: int) -> str:
    """`8 x H100-80-SXM`."""
    return f"{ranks:,} x {planned.device}"


def expected_words(told: Expected, *, omit: Collection[str] = ()) -> str:
    """The plan in words, labelled where it is lossy."""
    return plan_words(told.plan, omit=omit) + lossy_label(told.lossy)


def answer_sentence(planned: PlanningReport) -> str:
    """What the user asked, in one sentence."""
    answer, best = planned.answer, planned.best
    where = f"{planned.model} on {devices(planned, answer.ranks)}"
    if best is None:
        assert answer.nearest is not None
        return f"{where}: no, nothing fits; {_missing(answer.nearest, planned)}"
    line = f"{gib(best.peak_bytes.value)} of {gib(planned.limit_bytes)} GiB"
    return (
        f"{where}: yes, about {significant(best.samples_per_second.value)} samples/s"
        f" ({interval(best.samples_per_second)}) with {expected_words(best)}; {line};"
        f" limited by {term_words(best.limited_by)}"
    )


def _missing(nearest: ClosestPlan, planned: PlanningReport) -> str:
    return (
        f"the nearest plan ({expected_words(nearest.expected)}) would need"
        f" {gib(nearest.needed_bytes)} GiB a device, {gib(nearest.missing_bytes)} more than the"
        f" {gib(planned.limit_bytes)} there are"
    )


def missing_sentence(nearest: ClosestPlan) -> str:
    """The bytes that the nearest plan misses, by category."""
    parts = sorted(nearest.missing, key=lambda entry: -entry[1])
    told = ", ".join(
        f"{category_words(name)} {gib(size)}" for name, size in parts if size >= 0.01 * parts[0][1]
    )
    return f"what is missing, shared out as its peak is (GiB): {told}"


def enough_sentence(planned: PlanningReport) -> str:
    """What is smallest that would do."""
    ways = []
    if planned.fewest_ranks is not None:
        ways.append(f"{devices(planned, planned.fewest_ranks)}")
    if planned.enough:
        ways.append(f"{planned.answer.ranks:,} x {' or '.join(planned.enough)}")
    if not ways:
        assert planned.answer.nearest is not None
        needed = gib(planned.answer.nearest.needed_bytes)
        ways = [f"{devices(planned, planned.answer.ranks)} with {needed} GiB each"]
    return f"smallest that would do: {', or '.join(ways)}"


def fewest_sentence(planned: PlanningReport) -> str:
    """On how few devices it fits."""
    least = planned.fewest_ranks
    if least is None:
        return ""
    (size,) = (size for size in planned.sizes if size.ranks == least)
    best = size.best[0]
    return (
        f"it fits from {devices(planned, least)} on, at about"
        f" {significant(best.samples_per_second.value)} samples/s with {expected_words(best)}"
    )


def ruled_out_sentences(answer: ScaleResult) -> Iterator[str]:
    """Why the rest is ruled out."""
    combinations = answer.plans + sum(count for _, count in answer.ruled_out)
    unsure = answer.plans - answer.fitting - answer.hopeless - answer.unhosted
    yield (
        f"{combinations:,} combinations: {answer.fitting:,} recommended, {answer.hopeless:,} surely"
        f" too large, {unsure:,} above the line or too near the limit"
        + (f", {answer.unhosted:,} too large for the host's memory" if answer.unhosted else "")
    )
    if answer.ruled_out:
        most = sorted(answer.ruled_out, key=lambda entry: -entry[1])
        ruled = ", ".join(f"{count:,} by {name.replace('_', ' ')}" for name, count in most)
        yield f"not legal: {ruled}"


def waste_sentence(waste: TileWaste) -> str:
    """A wasteful size, and what it costs."""
    mend = "more wastes less" if waste.better is None else f"{waste.better:,} would not waste it"
    return (
        f"{waste.name} = {waste.size:,} a rank ({waste.why}): about {100 * waste.cost:.1f} % of a"
        f" step; {mend}"
    )


def memory_sentence(size: MemoryBudget) -> str:
    """What is best on devices of one size, and what it takes."""
    where = f"{gib(size.limit_bytes)} GiB a device"
    if size.best is None:
        return f"{where}: nothing fits"
    speed = significant(size.best.samples_per_second.value)
    told = f"{where}: {speed} samples/s with {expected_words(size.best)}"
    if not size.turned:
        return f"{told}; nothing has to be turned on"
    return (
        f"{told}; against the plan one would take if memory were no matter it saves"
        f" {gib(size.saved_bytes)} GiB and costs {slowdown_words(size.slowdown)}"
        f" ({turned_words(size)})"
    )


def turned_words(size: MemoryBudget) -> str:
    """Which groups of knobs are turned, each with what it saves and costs."""
    return "; ".join(
        f"{turn.group}: {_change(turn.saved_bytes)} GiB, {slowdown_words(turn.slowdown)}"
        for turn in size.turned
    )


def slowdown_words(share: float) -> str:
    """By how much a step gets longer: `+12 % time`."""
    return f"{100 * share:+.0f} % time"


def _change(saved_bytes: float) -> str:
    return f"-{gib(saved_bytes)}" if saved_bytes >= 0 else f"+{gib(-saved_bytes)}"


def common_words(plans: Sequence[Plan]) -> str:
    """What all plans have in common, `sdpa bf16`; empty if that is nothing."""
    return fixed_words(_as_space(plans)) if len(plans) > 1 else ""


def common_knobs(plans: Sequence[Plan]) -> frozenset[str]:
    """Names of the knobs to leave out where these plans stand in one table."""
    return fixed_knobs(_as_space(plans)) if len(plans) > 1 else frozenset()


def _as_space(plans: Sequence[Plan]) -> Space:
    table = PlanTable.of(plans)
    domains = tuple((knob.name, table.values[knob.name]) for knob in KNOBS)
    return Space(domains=domains, table=table, ruled_out=(), baseline=plans[0])
