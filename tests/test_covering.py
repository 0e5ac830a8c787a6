"""The default part of a test's parameters covers what it says."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests import conftest
from tests.covering import every_pair, every_value, spread

pytest_plugins = ("pytester",)
VALUES = {"a": (0, 1, 2), "b": ("x", "y"), "c": (None, 1), "d": (5, 6, 7, 8)}


def by_default(given: dict[str, object]) -> list[tuple[object, ...]]:
    return [row.values for row in given["argvalues"] if not row.marks]


def test_every_pair_of_values_runs_by_default_and_all_combinations_thoroughly() -> None:
    given = every_pair(**VALUES)
    chosen = by_default(given)

    assert {row.values for row in given["argvalues"]} == set(product(*VALUES.values()))
    assert len(chosen) < 20 < len(given["argvalues"])
    for one, other in combinations(range(4), 2):
        met = {(row[one], row[other]) for row in chosen}
        assert met == set(product(tuple(VALUES.values())[one], tuple(VALUES.values())[other]))


def test_every_value_runs_by_default() -> None:
    chosen = by_default(every_value(**VALUES))

    assert len(chosen) == 4
    for at, values in enumerate(VALUES.values()):
        assert {row[at] for row in chosen} == set(values)


def test_places_are_spread_from_the_first_to_the_last() -> None:
    assert spread(7, 3) == {0, 3, 6}
    assert spread(8, 2) == {0, 7}
    assert spread(4, 1) == {3}
    assert spread(2, 5) == {0, 1}  # there are not as many


@pytest.mark.parametrize(
    ("selected", "ran"),
    [("not thorough", {"[0]", "[3]", "[6]", "alone"}), ("thorough", {"[1]", "[2]", "[4]", "[5]"})],
)
def test_other_cases_than_the_named_number_are_thorough(
    pytester: pytest.Pytester, selected: str, ran: set[str]
) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.cases_by_default(3)
        @pytest.mark.parametrize("number", range(7))
        def test(number): pass

        def test_alone(): pass
    """)

    run = pytester.inline_run("-m", selected, plugins=[conftest])

    passed, skipped, failed = run.listoutcomes()
    assert {report.nodeid.partition("::test")[2].lstrip("_") for report in passed} == ran
    assert not skipped
    assert not failed
