"""Rules under which the weighted losses of a batch's parts make the loss of the whole."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from search_spaces.facts import Count, Fit, StepFindings, TargetRule
from workers.models.built import SampleNumbers
from workers.models.step_passes import ROUNDING, StepPasses, distance
from workers.models.user_code import UserCodeError

Table = Mapping[TargetRule, float]  # the weight of a batch under each rule, the assumed one first
# Parts of four samples or two, by their places; samples of a part change their order too
_SPLITS = {
    4: (((3,), (1, 0, 2)), ((2, 0), (1, 3)), ((0,), (3,), (1,), (2,))),
    2: (((0,), (1,)),),
}
_ALIKE = 0.02  # of a weight: a token that is 0 among many, say
_DRAWS = 300  # of samples, of which those are taken whose weights differ most


def choose_samples(tables: Mapping[int, Table], count: int) -> SampleNumbers:
    """Returns the samples between whose weights the rules differ most."""
    draw, rules = random.Random(0), list(next(iter(tables.values())))

    def apart(samples: SampleNumbers) -> float:
        shares = _shares(rules, [tables[one] for one in samples])
        return float(torch.pdist(shares, torch.inf).clamp(max=0.05).sum())

    drawn = [tuple(draw.sample(sorted(tables), count)) for _ in range(_DRAWS)]
    return max(drawn, key=apart)


def are_alike(rules: Sequence[TargetRule], tables: Sequence[Table]) -> bool:
    """Tells if rules give nearly the same weights, up to a factor, in all tables."""
    shares = _shares(rules, tables)
    return bool((shares - shares[:1]).abs().max() <= _ALIKE * shares[0].max())


def _shares(rules: Sequence[TargetRule], tables: Sequence[Table]) -> torch.Tensor:
    rows = [[table.get(rule, 0.0) for table in tables] for rule in rules]
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.abs().sum(1, keepdim=True).clamp(min=1e-9)


def parts_of(chosen: SampleNumbers) -> tuple[SampleNumbers, ...]:
    """Returns the parts of some samples that `fit_rules` runs."""
    return tuple(dict.fromkeys(part for split in _splits(chosen) for part in split))


def _splits(chosen: SampleNumbers) -> list[list[SampleNumbers]]:
    splits = _SPLITS[len(chosen)]
    return [[tuple(chosen[place] for place in part) for part in split] for split in splits]


def fit_rules(
    passes: StepPasses, chosen: SampleNumbers, tables: Mapping[SampleNumbers, Table]
) -> StepFindings:
    """Tries each rule on each split, then weights that are solved from the gradients.

    Args:
        passes: Of the module.
        chosen: Four samples, or two.
        tables: Weights of the whole and of each part.

    Returns:
        The findings about the fit alone.
    """
    whole, losses, smallest = passes.run(chosen), dict[SampleNumbers, torch.Tensor](), 1
    for part in parts_of(chosen):
        try:
            losses[part] = passes.run(part)
        except UserCodeError:  # no statistics of a single sample, say
            smallest = max(smallest, len(part) + 1)
    usable = [split for split in _splits(chosen) if all(part in losses for part in split)]

    def error_of(weights: Mapping[SampleNumbers, float], *, is_sum: bool = False) -> float:
        return max((_miss(whole, split, losses, weights, is_sum) for split in usable), default=1.0)

    errors = {
        rule: error_of(
            {part: tables[part].get(rule, -1.0) for part in losses}, is_sum=rule.count is Count.ONE
        )
        for rule in tables[chosen]
        if rule.count in (Count.ONE, Count.VALUE) or _adds_up(rule, chosen, tables)
    }
    found = StepFindings(smallest_batch=smallest)
    if fits := tuple(rule for rule, error in errors.items() if error <= ROUNDING):
        return replace(found, fit=Fit.FOUND, mean_over=fits)
    assumed, nearest = next(iter(errors)), min(errors, key=errors.__getitem__)
    if errors[assumed] <= 2 * errors[nearest]:
        nearest = assumed
    found = replace(found, nearest=nearest, nearest_error=errors[nearest], mean_over=(nearest,))
    singles = [losses[(one,)] for one in chosen if (one,) in losses]
    if len(singles) < max(_SPLITS):
        return found
    solved = torch.linalg.lstsq(torch.stack(singles, 1), whole[:, None]).solution[:, 0].tolist()
    shares = dict(zip(chosen, solved, strict=True))
    if error_of({part: sum(shares[one] for one in part) for part in losses}) > 4 * ROUNDING:
        return found
    ratios = tuple(round(share / (solved[0] or 1.0), 3) for share in solved)
    return replace(found, fit=Fit.HIDDEN, ratios=ratios)


def _adds_up(
    rule: TargetRule, chosen: SampleNumbers, tables: Mapping[SampleNumbers, Table]
) -> bool:
    """Tells a count of samples from one that counts padding, which single samples lack."""
    apart = sum(tables[(one,)].get(rule, 0.0) for one in chosen)
    return abs(tables[chosen][rule] - apart) <= ROUNDING * abs(apart)


def _miss(
    whole: torch.Tensor,
    split: Sequence[SampleNumbers],
    losses: Mapping[SampleNumbers, torch.Tensor],
    weights: Mapping[SampleNumbers, float],
    is_sum: bool,
) -> float:
    """Returns by how much the parts' weighted losses and gradients miss those of the whole."""
    own = [weights[part] for part in split]
    total = 1.0 if is_sum else sum(own)
    if min(own) < 0 or total <= 0:
        return 1.0
    value = torch.zeros_like(whole)
    for part, weight in zip(split, own, strict=True):
        if weight:  # a part without targets has no mean
            value = value + losses[part] * (weight / total)
    return distance(value, whole, *(losses[part] for part in split if weights[part]))
