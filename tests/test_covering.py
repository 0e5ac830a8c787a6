"""The default part of a test's parameters covers what it says."""

import pytest

from tests import conftest
from tests.covering import spread

pytest_plugins = ("pytester",)


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
