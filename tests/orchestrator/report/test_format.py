"""Formats of outcomes and quantities."""

from orchestrator.report.format import duration, mfu_sentence, number, spread
from orchestrator.report.labels import outcome_words
from search_spaces.trial import Ceiling, Estimate
from tests.outcomes import make_conditions, make_measured


def test_a_throttled_measurement_is_labelled() -> None:
    outcome = make_measured(conditions=make_conditions(("power cap",)))

    assert outcome_words(outcome).endswith("(throttled: power cap)")


def test_an_mfu_names_its_ceiling_and_the_convention_of_papers() -> None:
    ceiling = Ceiling(flops_per_second=705e12, measured=True)
    sheet = Ceiling(flops_per_second=989e12, measured=False)

    assert mfu_sentence(0.694, ceiling, 0.52) == (
        "MFU: 69 % of the device's 705 TFLOP/s, measured in matmuls of the model's shapes;"
        " 52 % of its data sheet as papers count (6 N + 12 L d T)"
    )
    assert (
        mfu_sentence(0.5, sheet, None) == "MFU: 50 % of the device's 989 TFLOP/s, by its data sheet"
    )
    assert mfu_sentence(None, None, None) == ""


def test_durations_and_numbers_are_short() -> None:
    assert [*map(duration, (0, 59.6, 200, 3900))] == ["0 s", "1 min", "3 min 20 s", "1 h 05 min"]
    assert [*map(number, (0.0, 0.01234567, 41.2, 1234567.0))] == [
        *("0", "0.01235", "41.20", "1,234,567")
    ]


def test_an_interval_has_the_decimals_of_its_value() -> None:
    assert spread(Estimate(value=41.2, low=40.6, high=41.8)) == "41.2 ± 0.6"
    assert spread(Estimate(value=0.412, low=0.406, high=0.418)) == "0.412 ± 0.006"
    assert spread(Estimate(value=296.0, low=4.1, high=71_800.0)) == "296 ± 100 % or more"
