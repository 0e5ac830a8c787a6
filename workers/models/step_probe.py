"""Probe of a training step: what the loss is a mean over, and what passes show of the module."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from search_spaces.errors import UserError
from search_spaces.facts import Fit, Recomputation, StepFindings, TargetRule
from workers.data.targets import offered_rules, target_weight
from workers.data.user_batches import module_inputs, takes_targets
from workers.models.built import SampleNumbers
from workers.models.equal_draws import TooSlowError
from workers.models.loss_fit import Table, are_alike, choose_samples, fit_rules, parts_of
from workers.models.stack import find_blocks
from workers.models.step_passes import ROUNDING, StepPasses, distance
from workers.models.user_code import UserCodeError
from workers.plain_torch.blocks import checkpoint_blocks

Entries = Callable[[SampleNumbers], Mapping[str, Any]]
SECONDS = 25.0  # of this thread, for all passes
_OFFERED, _OFFER_SECONDS = 64, 5.0  # samples among which some are chosen
_SALTS, _SALT_SECONDS = 24, 3.0  # passes with other draws, which show what is used in some of them
_PASSES = 32  # of a sample, about, in a probe with four samples


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
    weights = with_weights_of(module, StepFindings())
    try:
        takes = takes_targets(module)
        passes = StepPasses(
            module.float(),
            lambda numbers: module_inputs(entries(numbers), takes_targets=takes),
            until,
            gradients=gradients,
        )
        found = _probed(passes, entries, assumed)
    except TooSlowError:
        found = StepFindings(not_probed=f"its passes take more than {SECONDS:.0f} s")
    except UserCodeError as error:
        found = StepFindings(not_probed=str(error))
    return replace(found, tied=weights.tied, frozen=weights.frozen, dtypes=weights.dtypes)


def with_weights_of(module: nn.Module, findings: StepFindings) -> StepFindings:
    """Returns findings with those about a module's weights that take no pass."""
    names: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    weights = list(module.parameters())
    return replace(
        findings,
        tied=tuple(" = ".join(each) for each in names.values() if len(each) > 1),
        frozen=sum(one.numel() for one in weights if not one.requires_grad),
        dtypes=tuple(sorted({str(one.dtype).removeprefix("torch.") for one in weights})),
    )


def _probed(passes: StepPasses, entries: Entries, assumed: TargetRule) -> StepFindings:
    offered = _offered(entries, assumed)
    if len(offered) < 2:
        return StepFindings(not_probed="its data has fewer than two samples")
    pair = choose_samples({one: table for one, (table, _) in offered.items()}, 2)
    whole = passes.run(pair)
    buffers, began = passes.changed_state(), time.thread_time()
    carried = distance(passes.run(pair, restores=False), whole)
    unsaved = distance(passes.run(pair), whole) > ROUNDING
    seconds = (time.thread_time() - began) / (2 * len(pair))  # of a sample
    count = 4 if len(offered) >= 4 and seconds * _PASSES < SECONDS else 2
    found = _fitted(passes, entries, offered, assumed, count)
    carries = carried > ROUNDING
    found = replace(
        found,
        changed_state=buffers,
        carries_state=carries,
        carried_share=carried if carries else 0.0,
        unsaved_state=unsaved or (carries and not buffers),
    )
    with contextlib.suppress(TooSlowError):
        _draw_otherwise(passes, pair)
    found = replace(
        found,
        loss_form=passes.form,
        unused=passes.unused(),
        varying=passes.varying(),
        draws=passes.draws,
    )
    with contextlib.suppress(TooSlowError):
        found = replace(found, recomputation=_recomputation(passes, pair))
    return found


def _offered(entries: Entries, assumed: TargetRule) -> dict[int, tuple[Table, object]]:
    """Returns the first samples' weights under each rule, and the shapes of their entries."""
    offered: dict[int, tuple[Table, object]] = {}
    until = time.thread_time() + _OFFER_SECONDS
    with contextlib.suppress(IndexError, KeyError, StopIteration, UserError):  # the data ends
        while len(offered) < _OFFERED and time.thread_time() < until:
            batch = entries((len(offered),))
            shapes = tuple(getattr(value, "shape", None) for value in batch.values())
            offered[len(offered)] = _table(batch, 1, assumed), shapes
    return offered


def _table(batch: Mapping[str, Any], samples: int, assumed: TargetRule) -> Table:
    return {rule: target_weight(rule, batch, samples) for rule in offered_rules(batch, assumed)}


def _fitted(
    passes: StepPasses,
    entries: Entries,
    offered: Mapping[int, tuple[Table, object]],
    assumed: TargetRule,
    count: int,
) -> StepFindings:
    """Fits rules to samples of different weights, and to samples of one shape if none does."""

    def fitted(chosen: SampleNumbers) -> StepFindings:
        parts = (chosen, *parts_of(chosen))
        tables = {part: _table(entries(part), len(part), assumed) for part in parts}
        return fit_rules(passes, chosen, tables)

    singles = {one: table for one, (table, _) in offered.items()}
    found = fitted(choose_samples(singles, count))
    if found.fit is Fit.FOUND and not are_alike(found.mean_over, list(singles.values())):
        return replace(found, fit=Fit.AMBIGUOUS)
    shapes = [shape for _, shape in offered.values()]
    alike = [one for one in offered if shapes[one] == max(shapes, key=shapes.count)][:count]
    if found.fit is Fit.NOTHING and len(alike) == count and len(set(shapes)) > 1:
        among = fitted(tuple(alike))
        if among.fit is Fit.FOUND:
            return replace(found, fit=Fit.PADDING, mean_over=among.mean_over)
    return found


def _draw_otherwise(passes: StepPasses, numbers: SampleNumbers) -> None:
    """Runs passes with other draws, which may leave weights out."""
    until = time.thread_time() + _SALT_SECONDS
    for salt in range(1, _SALTS if passes.draws else 2):
        if time.thread_time() < until:
            passes.run(numbers, salt=salt)


def _recomputation(passes: StepPasses, numbers: SampleNumbers) -> Recomputation:
    """Compares two passes with two whose blocks are recomputed; they must be the last."""
    blocks = find_blocks(passes.module)
    if not (blocks and passes.gradients):
        return Recomputation.SAME
    plain = [passes.run(numbers, restores=first, equal=False) for first in (True, False)]
    checkpoint_blocks(passes.module, blocks, range(len(blocks)), offload=False)
    try:
        again = [passes.run(numbers, restores=first, equal=False) for first in (True, False)]
    except UserCodeError:
        return Recomputation.FAILS
    differ = any(distance(*pair) > ROUNDING for pair in zip(again, plain, strict=True))
    return Recomputation.GRADIENT if differ else Recomputation.SAME
