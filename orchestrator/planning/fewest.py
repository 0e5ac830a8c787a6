"""The fewest devices on which a model fits."""

from __future__ import annotations

from collections.abc import Callable

MOST_RANKS = 2**17  # beyond any cluster there is


def sizes_between(least: int, most: int, whole: int) -> tuple[int, ...]:
    """Counts of devices that people use: powers of two, and one and a half of those.

    Args:
        least: The smallest.
        most: The largest.
        whole: Devices of a node; larger counts are whole nodes.
    """
    powers = [2**power for power in range(most.bit_length())]
    found = {size for power in powers for size in (power, power + power // 2)}
    return tuple(
        sorted(
            size for size in found if least <= size <= most and (size <= whole or size % whole == 0)
        )
    )


def fewest(
    fits: Callable[[int], bool], *, start: int, whole: int, named: tuple[int, ...]
) -> int | None:
    """The least count for which something fits, None if there is none up to `MOST_RANKS`.

    Where a power of two fits, so does the next one; that is what is searched by halves. Between
    the greatest that does not and the least that does, the count half way and those that the
    user named are tried.

    Args:
        fits: Whether any plan fits on so many devices; asked as rarely as can be.
        start: The power of two at or below this is asked first.
        whole: Devices of a node.
        named: Counts that the user asks about.
    """
    exponent = max(start, 1).bit_length() - 1
    if fits(2**exponent):
        low, high = -1, exponent
    else:
        low = exponent
        high = exponent + 1
        while not fits(2**high):
            low, high = high, high + 1
            if 2**high > MOST_RANKS:
                return min((size for size in named if fits(size)), default=None)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(2**middle):
            high = middle
        else:
            low = middle
    below = 2**low if low >= 0 else 0
    between = set(sizes_between(below + 1, 2**high - 1, whole))
    between |= {size for size in named if below < size < 2**high}
    return next((size for size in sorted(between) if fits(size)), 2**high)
