"""Probe of a training step: what the loss is a mean over, and what passes show of the module."""

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn

from search_spaces.errors import UserError
from search_spaces.facts import Count, Fit, Recomputation, StepFindings, TargetRule
from workers.data.user_batches import (
    SampleNumbers,
    module_inputs,
    offered_rules,
    takes_targets,
    target_weight,
)
from workers.models.stack import find_blocks
from workers.models.step_passes import ROUNDING, Inputs, StepPasses, TooSlowError, distance
from workers.models.user_code import UserCodeError, user_code_errors
from workers.plain_torch.blocks import checkpoint_blocks
from workers.plain_torch.loss import loss_of

Entries = Callable[[SampleNumbers], Mapping[str, Any]]
Table = Mapping[TargetRule, float]  # the weight of a batch under each rule, the assumed one first
SECONDS = 25.0  # of this thread, for all passes
_OFFERED, _OFFER_SECONDS = 64, 5.0  # samples among which some are chosen
_SALTS, _SALT_SECONDS = 24, 3.0  # passes with other draws, which show what is used in some of them
_PASSES = 32  # of a sample, about, in a probe with four samples
# Parts of four samples or two, by their places; samples of a part change their order too
_SPLITS = {4: (((3,), (1, 0, 2)), ((2, 0), (1, 3)), ((0,), (3,), (1,), (2,))), 2: (((0,), (1,)),)}
_SIZES = (1, 2, 4, 8)  # of micro-batches, of which one may work
_ALIKE = 0.02  # of a weight: a token that is 0 among many, say
_DRAWS = 300  # of samples, of which those are taken whose weights differ most


def probe_step(
    module: nn.Module, entries: Entries, assumed: TargetRule, *, gradients: bool = True
) -> StepFindings:
    """Probes a module in training mode; it is used up.

    Args:
        module: Its weights have values.
        entries: Makes batches by sample numbers, in tensors.
        assumed: The rule that the keys of a batch suggest.
        gradients: Compare gradients too, and passes that recompute blocks.

    Raises:
        ModelError: If forward returns no loss, or one for each sample; says what to return.
    """
    until = time.thread_time() + SECONDS
    weights, takes = weight_findings(module), takes_targets(module)

    def inputs(numbers: SampleNumbers) -> Mapping[str, Any]:
        return module_inputs(entries(numbers), takes_targets=takes)

    try:
        passes = StepPasses(module.float(), inputs, until, gradients=gradients)
        found = _Probe(passes=passes, entries=entries, assumed=assumed).findings()
    except TooSlowError:
        found = StepFindings(not_probed=f"its passes take more than {SECONDS:.0f} s")
    except UserCodeError as error:
        found = StepFindings(not_probed=str(error), fails=_fails(module, inputs))
    return replace(found, **weights)


def _fails(module: nn.Module, inputs: Inputs) -> bool:
    """Tells if a step fails without the mode of the passes too, whatever its micro-batch."""
    for samples in _SIZES:
        with contextlib.suppress(UserError), user_code_errors("a step"):
            loss_of(module(**inputs(tuple(range(samples))))).backward()
            return False
    return True


def weight_findings(module: nn.Module) -> dict[str, Any]:
    """Returns the fields of `StepFindings` about a module's weights, which take no pass."""
    names: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    return {
        "tied": tuple(" = ".join(each) for each in names.values() if len(each) > 1),
        "dtypes": tuple(sorted({*map(_kind, module.parameters())})),
    }


def _kind(weight: nn.Parameter) -> str:
    is_usual = weight.dim() and weight.numel() and weight.is_contiguous()
    odd = "" if is_usual else f" of shape {[*weight.shape]} and strides {[*weight.stride()]}"
    return f"{weight.dtype}{odd}".removeprefix("torch.")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """Passes of one module, with the batches that it is probed on."""

    passes: StepPasses
    entries: Entries
    assumed: TargetRule

    def findings(self) -> StepFindings:
        offered, passes = self._offered(), self.passes
        if len(offered) < 2:
            return StepFindings(not_probed="its data has fewer than two samples")
        pair = _differing({one: table for one, (table, _) in offered.items()}, 2)
        whole = passes.run(pair)
        weights, began = passes.changed_weights(), time.thread_time()
        changed = passes.changed_buffers() + weights
        # a moving average moves only after an update of what it averages
        carried = 1.0 if weights else distance(passes.run(pair, restores=False), whole)
        unsaved = distance(passes.run(pair), whole) > ROUNDING
        seconds = (time.thread_time() - began) / (2 * len(pair))  # of a sample
        found = self._fitted(offered, 4 if seconds * _PASSES < SECONDS else 2)
        carries, until = carried > ROUNDING, time.thread_time() + _SALT_SECONDS
        with contextlib.suppress(TooSlowError):
            for salt in range(1, _SALTS if passes.draws else 2):
                if time.thread_time() < until:
                    passes.run(pair, salt=salt)
        unused, varying = passes.use()
        recomputation = Recomputation.SAME
        with contextlib.suppress(TooSlowError):
            recomputation = _recomputation(passes, pair)
        return replace(
            found,
            changed_state=changed,
            carries_state=carries,
            carried_share=carried if carries else 0.0,
            unsaved_state=unsaved or (carries and not changed),
            loss_form=passes.form,
            unused=unused,
            varying=varying,
            draws=passes.draws,
            differentiates=passes.differentiates,
            recomputation=recomputation,
        )

    def _offered(self) -> dict[int, tuple[Table, object]]:
        """Returns the first samples' weights under each rule, and the shapes of their entries."""
        offered: dict[int, tuple[Table, object]] = {}
        until = time.thread_time() + _OFFER_SECONDS
        with contextlib.suppress(IndexError, KeyError, StopIteration, UserError):  # the data ends
            while len(offered) < _OFFERED and time.thread_time() < until:
                batch = self.entries((len(offered),))
                shapes = tuple(getattr(value, "shape", None) for value in batch.values())
                offered[len(offered)] = self._table(batch, 1), shapes
        return offered

    def _table(self, batch: Mapping[str, Any], samples: int) -> Table:
        rules = offered_rules(batch, self.assumed)
        return {rule: target_weight(rule, batch, samples) for rule in rules}

    def _fitted(self, offered: Mapping[int, tuple[Table, object]], most: int) -> StepFindings:
        """Fits rules to samples of different weights, and to samples of one shape if none does."""
        count = most if len(offered) >= most else 2
        singles = {one: table for one, (table, _) in offered.items()}
        found = self._fit(_differing(singles, count))
        if found.fit is Fit.FOUND:
            shares = _shares(found.mean_over, list(singles.values()))
            are_alike = bool((shares - shares[:1]).abs().max() <= _ALIKE * shares[0].max())
            return found if are_alike else replace(found, fit=Fit.AMBIGUOUS)
        shapes = [shape for _, shape in offered.values()]
        alike = [one for one in offered if shapes[one] == max(shapes, key=shapes.count)][:count]
        if found.fit is Fit.NOTHING and len(alike) == count and len(set(shapes)) > 1:
            among = self._fit(tuple(alike))
            if among.fit is Fit.FOUND:
                return replace(found, fit=Fit.PADDING, mean_over=among.mean_over)
        return found

    def _fit(self, chosen: SampleNumbers) -> StepFindings:
        """Tries each rule on each split, then weights that are solved from the gradients."""
        splits = [
            [tuple(chosen[place] for place in part) for part in split]
            for split in _SPLITS[len(chosen)]
        ]
        losses, tables, smallest = dict[SampleNumbers, torch.Tensor](), {}, 1
        whole = losses[chosen] = self.passes.run(chosen)
        for part in dict.fromkeys((chosen, *(part for split in splits for part in split))):
            tables[part] = self._table(self.entries(part), len(part))
            with contextlib.suppress(UserCodeError):
                found = whole if part == chosen else self.passes.run(part)
                if part == chosen or found.isfinite().all():
                    losses[part] = found
            if part not in losses:  # no statistics of a single sample, say
                smallest = max(smallest, len(part) + 1)
        usable = [split for split in splits if all(part in losses for part in split)]

        def error_of(weights: Mapping[SampleNumbers, float], *, is_sum: bool = False) -> float:
            misses = (_miss(whole, split, losses, weights, is_sum=is_sum) for split in usable)
            return max(misses, default=1.0)

        errors = {
            rule: error_of(
                {part: tables[part].get(rule, -1.0) for part in losses},
                is_sum=rule.count is Count.ONE,
            )
            for rule in tables[chosen]
            if _adds_up(rule, chosen, tables)
        }
        findings = StepFindings(smallest_batch=smallest)
        if fits := tuple(rule for rule, error in errors.items() if error <= ROUNDING):
            return replace(findings, fit=Fit.FOUND, mean_over=fits)
        assumed, nearest = next(iter(errors)), min(errors, key=errors.__getitem__)
        if errors[assumed] <= 2 * errors[nearest]:
            nearest = assumed
        findings = replace(
            findings, nearest=nearest, nearest_error=errors[nearest], mean_over=(nearest,)
        )
        singles = [losses[(one,)] for one in chosen if (one,) in losses]
        if len(singles) < max(_SPLITS) or not whole.isfinite().all():
            return findings
        solved = torch.linalg.lstsq(torch.stack(singles, 1), whole[:, None]).solution[:, 0].tolist()
        shares = dict(zip(chosen, solved, strict=True))
        if error_of({part: sum(shares[one] for one in part) for part in losses}) > 4 * ROUNDING:
            return findings
        return replace(findings, fit=Fit.HIDDEN)


def _differing(tables: Mapping[int, Table], count: int) -> SampleNumbers:
    """Returns the samples between whose weights the rules differ most."""
    draw, rules = random.Random(0), list(next(iter(tables.values())))

    def apart(samples: SampleNumbers) -> float:
        shares = _shares(rules, [tables[one] for one in samples])
        return float(torch.pdist(shares, torch.inf).clamp(max=0.05).sum())

    drawn = [tuple(draw.sample(sorted(tables), count)) for _ in range(_DRAWS)]
    return max(drawn, key=apart)


def _shares(rules: Sequence[TargetRule], tables: Sequence[Table]) -> torch.Tensor:
    rows = [[table.get(rule, 0.0) for table in tables] for rule in rules]
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.abs().sum(1, keepdim=True).clamp(min=1e-9)


def _adds_up(
    rule: TargetRule, chosen: SampleNumbers, tables: Mapping[SampleNumbers, Table]
) -> bool:
    """Tells a count of samples from one that counts padding, which single samples lack."""
    apart = sum(tables[(one,)].get(rule, 0.0) for one in chosen)
    is_count = rule.count not in (Count.ONE, Count.VALUE)
    return not is_count or abs(tables[chosen][rule] - apart) <= ROUNDING * abs(apart)


def _miss(
    whole: torch.Tensor,
    split: Sequence[SampleNumbers],
    losses: Mapping[SampleNumbers, torch.Tensor],
    weights: Mapping[SampleNumbers, float],
    *,
    is_sum: bool,
) -> float:
    """Returns by how much the parts' weighted losses and gradients miss those of the whole."""
    own = {part: weights[part] for part in split}
    total = 1.0 if is_sum else sum(own.values())
    if min(own.values()) < 0 or total <= 0:
        return 1.0
    # a part without targets has no mean
    terms = [losses[part] * (weight / total) for part, weight in own.items() if weight]
    return distance(torch.stack(terms).sum(0), whole, *(losses[one] for one in own if own[one]))


def _recomputation(passes: StepPasses, numbers: SampleNumbers) -> Recomputation:
    """Compares two passes with two whose blocks are recomputed; they must be the last."""
    blocks = find_blocks(passes.module)
    if not (blocks and passes.gradients):
        return Recomputation.SAME
    plain = [passes.run(numbers, restores=first, equal=False) for first in (True, False)]
    checkpoint_blocks(passes.module, blocks, range(len(blocks)))
    try:
        again = [passes.run(numbers, restores=first, equal=False) for first in (True, False)]
    except UserCodeError:
        return Recomputation.FAILS
    differ = any(distance(*pair) > ROUNDING for pair in zip(again, plain, strict=True))
    return Recomputation.GRADIENT if differ else Recomputation.SAME
