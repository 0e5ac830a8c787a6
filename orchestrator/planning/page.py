"""The answer as one page that needs nothing else: Plotly is part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.planning.expected import Expected
from orchestrator.planning.figures import figures
from orchestrator.planning.planned import Planned
from orchestrator.planning.words import (
    answer_sentence,
    common_knobs,
    common_words,
    devices,
    enough_sentence,
    expected_words,
    fewest_sentence,
    interval,
    memory_sentence,
    missing_sentence,
    percent,
    ruled_out_sentences,
    significant,
    term_words,
    waste_sentence,
)
from orchestrator.report.html import Table, Tile, render_page
from orchestrator.view.words import gib


def planned_page(planned: Planned) -> str:
    """The HTML of the page; all scripts and styles are in it."""
    answer = planned.answer
    return render_page(
        "plan.jinja",
        title=f"{planned.model} on {devices(planned, answer.ranks)}",
        figures=figures(planned),
        headline=answer_sentence(planned),
        warnings=planned.notes,
        shortfall=_shortfall(planned),
        best_tiles=() if planned.best is None else tuple(_tiles(planned, planned.best)),
        drawn_plans="best plans" if planned.best else "nearest plan",
        best_plans=_listing(answer.best),
        front=_listing(planned.front),
        counts=_counts(planned),
        fewest=fewest_sentence(planned),
        memory_advice=tuple(map(memory_sentence, planned.memory_sizes)),
        wasteful=tuple(map(waste_sentence, planned.wasteful)),
        ruled_out=tuple(ruled_out_sentences(answer)),
        footer=_footer(planned),
    )


def _shortfall(planned: Planned) -> tuple[str, ...]:
    """Says what is missing where nothing fits."""
    nearest = planned.answer.nearest
    if nearest is None:
        return ()
    return tuple(filter(None, (missing_sentence(nearest), enough_sentence(planned))))


def _tiles(planned: Planned, best: Expected) -> Iterator[Tile]:
    rate = best.samples_per_second
    line = f"line {gib(planned.line_bytes)} of {gib(planned.limit_bytes)}"
    yield Tile(name="samples/s", value=significant(rate.value), detail=interval(rate))
    yield Tile(name="tokens/s/device", value=f"{best.tokens_per_second_per_device:,.0f}")
    yield Tile(name="MFU", value=percent(best.mfu))
    yield Tile(name="peak memory, GiB", value=gib(best.peak_bytes.value), detail=line)
    yield Tile(name="fits", value=percent(best.fits))
    yield Tile(name="limited by", value=term_words(best.limited_by))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """A table of plans, and what all of them have in common."""

    common: str
    table: Table


def _listing(shown: Sequence[Expected]) -> _Listing | None:
    if not shown:
        return None
    plans = [one.plan for one in shown]
    omit = common_knobs(plans)
    rows = tuple(
        (
            str(place),
            expected_words(one, omit=omit),
            f"{significant(one.samples_per_second.value)} ({interval(one.samples_per_second)})",
            f"{one.tokens_per_second_per_device:,.0f}",
            percent(one.mfu),
            gib(one.peak_bytes.value),
            percent(one.fits),
            term_words(one.limited_by),
        )
        for place, one in enumerate(shown, 1)
    )
    table = Table(
        columns={
            "#": "number",
            "plan": "plan",
            "samples/s": "number",
            "tokens/s/device": "number",
            "MFU": "number",
            "GiB": "number",
            "fits": "number",
            "limited by": "words",
        },
        rows=rows,
    )
    return _Listing(common=common_words(plans), table=table)


def _counts(planned: Planned) -> Table | None:
    if len(planned.sizes) < 2:
        return None
    rows = []
    for size in planned.sizes:
        if not size.best:
            rows.append((f"{size.ranks:,}", "-", "-", "-", size.refusal or "nothing fits"))
            continue
        best, price = size.best[0], size.price_per_billion_tokens
        rows.append(
            (
                f"{size.ranks:,}",
                f"{significant(best.samples_per_second.value)}"
                f" ({interval(best.samples_per_second)})",
                f"{best.tokens_per_second_per_device:,.0f}",
                "-" if price is None else f"{price:,.2f}",
                expected_words(best),
            )
        )
    return Table(
        columns={
            "devices": "number",
            "samples/s": "number",
            "tokens/s/device": "number",
            "price of 1e9 tokens": "number",
            "best plan": "plan",
        },
        rows=tuple(rows),
    )


def _footer(planned: Planned) -> str:
    return (
        f"{planned.parameters:,} parameters, {planned.tokens:,} tokens a sample,"
        f" {planned.global_batch:,} samples a step; {planned.forecast_plans:,} plans forecast in"
        f" {planned.seconds:.1f} s; coefficients: {planned.provenance}"
    )
