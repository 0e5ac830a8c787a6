"""Parameters of a test: a covering part by default, all combinations in the thorough run."""


def spread(length: int, count: int) -> set[int]:
    """Returns places in a list, evenly from the first to the last; of one place, the last."""
    if count == 1:
        return {length - 1}
    return {round(number * (length - 1) / (count - 1)) for number in range(count)}
