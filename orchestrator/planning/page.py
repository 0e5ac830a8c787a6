"""The answer as one page that needs nothing else: Plotly is part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

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
from orchestrator.view.html import bullets, chart, table, tiles, whole_page
from orchestrator.view.html import notes as told_notes
from orchestrator.view.words import gib

_CHARTS = {  # places of charts, in this order, with what they are called and what they say
    "speed-memory": (
        "Speed against memory",
        "Each point is a legal plan; the front holds those that no other beats with less memory."
        " The solid line is what the head-room leaves, the dotted one the device's end.",
    ),
    "memory": ("Memory of the best plans", "What the fullest device holds at its peak."),
    "time": ("Time of the best plans", "What an optimizer step is spent on."),
    "devices": ("Counts of devices", "The best plan of each count, with its interval of 95 %."),
    "sizes": ("Device sizes", "The best plan where a device has only so much memory."),
}


_WORDS = ("limited by",)


def planned_page(planned: Planned) -> str:
    """The HTML of the page; all scripts and styles are in it."""
    drawn = figures(planned)
    title = f"{planned.model} on {devices(planned, planned.answer.ranks)}"
    return whole_page(title, _body(planned, drawn), drawn)


def _body(planned: Planned, drawn: Iterable[str]) -> Iterator[str]:
    yield f"<h1>{escape(answer_sentence(planned))}</h1>"
    yield from told_notes(planned.notes)
    if planned.answer.nearest is not None:
        sentences = (missing_sentence(planned.answer.nearest), enough_sentence(planned))
        yield from (f"<p>{escape(sentence)}</p>" for sentence in sentences)
    yield from _tiles(planned)
    there = set(drawn)
    for name, (title, caption) in _CHARTS.items():
        if name in there:
            told = title if planned.best else title.replace("best plans", "nearest plan")
            yield from chart(name, told, caption)
        if name == "speed-memory":
            yield from _plans("Best plans", planned.answer.best)
    yield from _plans("The front", planned.front)
    yield from _size_table(planned)
    yield from bullets("What to turn on", map(memory_sentence, planned.memory_sizes))
    yield from bullets("Sizes that waste the matrix units", map(waste_sentence, planned.wasteful))
    yield from bullets("Ruled out", ruled_out_sentences(planned.answer))
    yield f'<p class="caption">{escape(_foot(planned))}</p>'


def _tiles(planned: Planned) -> Iterator[str]:
    best = planned.best
    if best is None:
        return
    told = [
        (
            "samples/s",
            significant(best.samples_per_second.value),
            interval(best.samples_per_second),
        ),
        ("tokens/s/device", f"{best.tokens_per_second_per_device:,.0f}", ""),
        ("MFU", percent(best.mfu), ""),
        (
            "peak memory, GiB",
            gib(best.peak_bytes.value),
            f"line {gib(planned.line_bytes)} of {gib(planned.limit_bytes)}",
        ),
        ("fits", percent(best.fits), ""),
        ("limited by", term_words(best.limited_by), ""),
    ]
    yield from tiles(told)


def _plans(title: str, shown: Sequence[Expected]) -> Iterator[str]:
    if not shown:
        return
    plans = [told.plan for told in shown]
    omit = common_knobs(plans)
    rows = [
        (
            str(number),
            expected_words(told, omit=omit),
            f"{significant(told.samples_per_second.value)} ({interval(told.samples_per_second)})",
            f"{told.tokens_per_second_per_device:,.0f}",
            percent(told.mfu),
            gib(told.peak_bytes.value),
            percent(told.fits),
            term_words(told.limited_by),
        )
        for number, told in enumerate(shown, 1)
    ]
    yield f"<section><h2>{escape(title)}</h2>"
    if common := common_words(plans):
        yield f'<p class="caption">all of these: {escape(common)}</p>'
    head = ("#", "plan", "samples/s", "tokens/s/device", "MFU", "GiB", "fits", "limited by")
    yield from table(head, rows, words=_WORDS)
    yield "</section>"


def _size_table(planned: Planned) -> Iterator[str]:
    if len(planned.sizes) < 2:
        return
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
    yield "<section><h2>Counts of devices</h2>"
    if fewest := fewest_sentence(planned):
        yield f'<p class="caption">{escape(fewest)}</p>'
    head = ("devices", "samples/s", "tokens/s/device", "price of 1e9 tokens", "best plan")
    yield from table(head, rows, words=_WORDS)
    yield "</section>"


def _foot(planned: Planned) -> str:
    return (
        f"{planned.parameters:,} parameters, {planned.tokens:,} tokens a sample,"
        f" {planned.global_batch:,} samples a step; {planned.forecast_plans:,} plans forecast in"
        f" {planned.seconds:.1f} s; coefficients: {planned.provenance}"
    )
