"""Which rank takes which samples of a step, and in which micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.plan import Plan

Numbers = tuple[int, ...]


def arrange(
    numbers: Numbers, lengths: Sequence[int], plan: Plan
) -> tuple[tuple[Numbers, ...], ...]:
    """Deals the samples of one optimizer step: by rank, then by micro-batch.

    Padded and packed take them in data order. Grouped sorts them by length first, longest
    first, so that a micro-batch needs little padding; the ranks get neighbours in length at
    the same time, so that none waits long for another, and swap ends from one micro-batch to
    the next, so that none always has the longest.

    Args:
        numbers: The samples of the step, in data order.
        lengths: Tokens of each of `numbers`.
        plan: Says how many ranks and micro-batches there are, and how they are laid out.

    Returns:
        For each rank, for each micro-batch, the numbers of its samples.

    Raises:
        ValueError: If the samples are not as many as the plan takes.
    """
    if len(numbers) != plan.global_batch or len(lengths) != len(numbers):
        raise ValueError(
            f"got {len(numbers)} samples and {len(lengths)} lengths, the plan takes"
            f" {plan.global_batch}"
        )
    places = list(range(len(numbers)))
    if plan.batching == "grouped":
        places.sort(key=lambda place: -lengths[place])
    dealt: list[list[Numbers]] = [[] for _ in range(plan.data)]
    for micro in range(plan.accumulation):
        start = micro * plan.data * plan.micro_batch
        for turn in range(plan.data):
            chunk = places[start + turn * plan.micro_batch : start + (turn + 1) * plan.micro_batch]
            swapped = plan.batching == "grouped" and micro % 2
            rank = plan.data - 1 - turn if swapped else turn
            dealt[rank].append(tuple(numbers[place] for place in chunk))
    return tuple(map(tuple, dealt))
