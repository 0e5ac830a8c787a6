"""Detection of the columns that are knobs, by their names and by how they behave.

Columns that every published table has are known, and so are the knobs of a plan. Of any other,
nobody knows beforehand whether somebody chose it or measured it. Its name may say so; or it behaves
as only a measurement does: it is there for all that ran and for nothing else, says whether they
ran, has nearly as many values as there are rows, or counts repeats.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.published.cells import COLUMNS, Row
from search_spaces.plan_table import KNOB_NAMES

Columns = Mapping[str, Sequence[str]]
# what a set may vary, of the columns that every table has
PUBLISHED_KNOBS = (
    *("precision", "optimizer", "sharding", "offload", "ckpt", "attn_impl", "compile"),
    *("tp", "pp", "dp", "cp_or_sp", "micro_batch", "grad_accum", "global_batch"),
    *("n_gpus", "seq_len"),
)
_KNOWN = {*PUBLISHED_KNOBS, *KNOB_NAMES}
_BESIDE = {*COLUMNS, "url_or_path"} - _KNOWN
# Columns that may say what others say, those first that are left out first: what follows from the
# count of devices and the batch, and words for what a plan's own knobs say
_COUNTED = (
    *("n_gpus", "seq_len", "accumulation", "grad_accum", "data", "dp", "global_batch"),
    *("pp", "tp", "cp_or_sp"),
)
_WORDED = ("sharding", "ckpt", "attn_impl", "offload")
_ENOUGH = 3  # times that each case is seen on average, where a column is taken to follow
_SIZE = r"(gib|gb|mib|mb|kib|bytes)"
_MEASURED = re.compile(
    rf"""
    (^|_)(seconds?|secs?|ms|msec|us|elapsed|duration|latency|throughput|timestamp)(_|$)
    | (^|_)(samples|tokens|sequences|steps|iters?|iterations)_per_
    | (^|_)(step|iter|iteration|trial|wall|run|train|forward|backward|compile|total)_?time(_|$)
    | ^time(_|$) | ^\w*_s$
    | (^|_)(\w*flops|mfu|hfu|goodput|speed|speedup)(_|$)
    | (^|_)(util|utili[sz]ation|watts?|temp|temperature|clock|mhz|power|power_(w|draw))$
    | (^|_)(loss|losses|perplexity|ppl|grad_norm|accuracy)$
    | (^|_)(peak|wanted|reserved|allocated|rss|held)(_|$)
    | (^|_)(mem|memory|alloc|vram|used|free)(_\w+)?_{_SIZE}$
    | _(low|high|lower|upper|mean|median|std|stdev|stddev|stderr|sem|var|min|max|p\d+|ci\d*)$
    | (^|_)(repeat|repeats|repetition|replicate|seed|timed_out|oom\w*)(_|$)
    | ^(rep|run|trial|attempt|round|measurement|index|idx|row|line|order|number|no|n)$
    | ^(n_?steps|steps|warmup_steps|measured_steps|timed_steps|steps_(measured|timed))$
    | (^|_)(id|key|hash|digest|uuid|sha\d*|pid)$ | ^unnamed | ^$
    | ^(outcome|status|state|ended|result|ok|success|succeeded|failed|failure|fits|feasible|valid)$
    | (^|_)(error|reason|message|exception|traceback|exit_code|returncode|comment|remark|note)s?$
    | (^|_)(date|datetime|started|finished|began|commit)(_|$)
    | ^(host|hostname|machine|node|node_name|fingerprint|driver|\w*version)$
    | (^|_)(url|path|file|log|source)$
    """,
    re.VERBOSE,
)
_FEW = 6  # so many values are no sign of a measurement, however few the rows
_CROWD = 0.4  # share of the rows from which on a column of numbers has too many values for a knob
_NAMES = 0.8  # and of words
_AGREE = 1.1  # rates of what is the same differ by less, or else something is missing
_SLIGHT = 0.03  # a logarithm: what repeats may differ by on average, whatever the noise
_SURE = 3.0  # standard errors


def knobs_of(rows: Sequence[Row], header: Iterable[str], rates: Sequence[float | None]) -> Columns:
    """The knobs that vary among rows, with their values.

    Args:
        rows: Those of one surface that were measured or are infeasible.
        header: All columns.
        rates: What was measured of each row; None if it is infeasible.
    """
    names = [name for name in header if name and name not in _BESIDE]
    names.sort(key=lambda name: (name not in _KNOWN, name not in PUBLISHED_KNOBS))
    columns = {name: [value_of(row, name) for row in rows] for name in dict.fromkeys(names)}
    varying = {name: cells for name, cells in columns.items() if len({*cells}) > 1}
    ran = [rate is not None for rate in rates]
    chosen = {
        name: cells
        for name, cells in varying.items()
        if name in _KNOWN or not (_is_named_as_measured(name) or tells_how_it_ended(cells, ran))
    }
    crowded = {n: cells for n, cells in chosen.items() if n not in _KNOWN and _crowds(cells)}
    chosen = {name: cells for name, cells in chosen.items() if name not in crowded}
    chosen = {
        name: cells
        for name, cells in chosen.items()
        if name in _KNOWN or not _counts_repeats(name, chosen, rates)
    }
    return _without_echoes({**chosen, **_needed(crowded, chosen, rates)})


def value_of(row: Row, name: str) -> str:
    """A cell with its number in one form: 1 and 1.0 are one value."""
    text = row.text(name)
    try:
        return f"{float(text) + 0.0:.10g}"
    except ValueError:
        return text


def tells_how_it_ended(cells: Sequence[str], ran: Sequence[bool]) -> bool:
    """Returns whether cells exist for exactly what ran, for none of it, or say that it ran."""
    if all(ran) or not any(ran):
        return False
    filled = [bool(cell) for cell in cells]
    if filled == list(ran) or not any(f and r for f, r in zip(filled, ran, strict=True)):
        return True
    of_run = {cell for cell, ok in zip(cells, ran, strict=True) if ok}
    return len(of_run) == 1 and not any(
        cell in of_run for cell, ok in zip(cells, ran, strict=True) if not ok
    )


def _is_named_as_measured(name: str) -> bool:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip()).lower()
    return _MEASURED.search(re.sub(r"[^a-z0-9]+", "_", plain)) is not None


def _crowds(cells: Sequence[str]) -> bool:
    """Returns whether there are nearly as many values as rows."""
    filled = [cell for cell in cells if cell]
    values = {*filled}
    share = _CROWD if _numbers(values) is not None else _NAMES
    return len(values) > max(_FEW, share * len(filled))


def _counts_repeats(name: str, columns: Columns, rates: Sequence[float | None]) -> bool:
    """Returns whether a column counts 0, 1, 2 or 1, 2, 3 through rows otherwise the same.

    They are repeats if their counts make no difference on the whole: neither to the rate, as far
    as the noise lets tell, nor to whether it ran.
    """
    numbers = _numbers({*columns[name]})
    if numbers is None or numbers not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)]):
        return False
    others = {other: cells for other, cells in columns.items() if other != name}
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, key in enumerate(_keys(others, len(rates))):
        groups[key].append(row)
    apart: dict[str, list[float]] = defaultdict(list)  # logarithms over the group's mean
    undecided = 0  # groups of which some ran and others did not
    for group in groups.values():
        known = {row: math.log(rate) for row in group if (rate := rates[row])}
        undecided += 0 < len(known) < len(group)
        mean = sum(known.values()) / max(len(known), 1)
        for row, log_rate in known.items():
            apart[columns[name][row]].append(log_rate - mean)
    slight = all(_is_slight(values) for values in apart.values())
    return 2 * len(groups) <= len(rates) and 10 * undecided <= len(groups) and slight


def _is_slight(values: Sequence[float]) -> bool:
    """Returns whether numbers are 0 on average, as far as they tell."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    error = math.sqrt(squares / max(len(values) - 1, 1) / len(values))
    return abs(mean) <= max(_SLIGHT, _SURE * error)


def _lack_something(columns: Columns, rates: Sequence[float | None]) -> bool:
    """Returns whether rows that agree in all columns were not all measured alike."""
    groups: dict[tuple[str, ...], list[float | None]] = defaultdict(list)
    for key, rate in zip(_keys(columns, len(rates)), rates, strict=True):
        groups[key].append(rate)
    for group in groups.values():
        known = [rate for rate in group if rate is not None]
        if known and (len(known) < len(group) or max(known) > _AGREE * min(known)):
            return True
    return False


def _needed(crowded: Columns, chosen: Columns, rates: Sequence[float | None]) -> Columns:
    """Returns the crowded columns of round values, if rows are not told apart without them."""
    if not _lack_something(chosen, rates):
        return {}
    return {
        name: cells
        for name, cells in crowded.items()
        if (numbers := _numbers({*cells} - {""})) is not None and all(map(_is_round, numbers))
    }


def _without_echoes(columns: Columns) -> Columns:
    """Returns the columns that follow from no others, if there are enough cases to tell."""
    cases = [*dict.fromkeys(zip(*columns.values(), strict=True))]
    kept = dict(zip(columns, zip(*cases, strict=True), strict=True))
    strange = [name for name in kept if name not in _KNOWN][::-1]
    for name in (*_WORDED, *_COUNTED, *strange):
        others = {other: cells for other, cells in kept.items() if other != name}
        if name in _WORDED:
            others = {other: cells for other, cells in others.items() if other in KNOB_NAMES}
        if name in kept and _follows(kept[name], others):
            del kept[name]
    return {name: columns[name] for name in kept}


def _follows(cells: Sequence[str], others: Columns) -> bool:
    """Returns whether a column follows from a few others.

    They must be so few that each case of theirs is seen several times: what tells nearly all
    candidates apart decides everything by chance.
    """
    deciding = dict(others)
    for name in sorted(others, key=lambda other: -len({*others[other]})):
        fewer = {other: values for other, values in deciding.items() if other != name}
        if _decided(cells, fewer):
            deciding = fewer
    count = len({*_keys(deciding, len(cells))})
    return _decided(cells, deciding) and _ENOUGH * count <= len(cells)


def _decided(cells: Sequence[str], by: Columns) -> bool:
    keys = _keys(by, len(cells))
    return len({*keys}) == len({*zip(keys, cells, strict=True)})


def _keys(columns: Columns, count: int) -> list[tuple[str, ...]]:
    return [*zip(*columns.values(), strict=True)] if columns else [()] * count


def _numbers(values: Iterable[str]) -> list[float] | None:
    try:
        return sorted(float(value) for value in values)
    except ValueError:
        return None


def _is_round(number: float) -> bool:
    """Returns whether somebody may have typed it: two digits, or those times a power of two."""
    while number >= 100 and number % 2 == 0:
        number /= 2
    return float(f"{number:.2g}") == number
