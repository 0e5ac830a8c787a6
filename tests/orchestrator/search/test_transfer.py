"""Transfer of measurements from other machines."""

from dataclasses import replace

import pytest

from orchestrator.search.transfer import (
    OTHER_HOSTS_STD,
    OTHER_SOFTWARE_STD,
    SAME_MACHINE_STD,
    transfer_std,
)
from search_spaces.trial import Fingerprint
from tests.outcomes import CPU_FINGERPRINT as OLD

OURS = replace(OLD, environment=(("LD_PRELOAD", ""), ("driver", "580.65")))
OLDER = replace(OURS, versions=(("ray", "2.60.0"), ("torch", "2.12.0")))
FAR = replace(OURS, hosts=2)


@pytest.mark.parametrize(
    ("theirs", "off"),
    [
        (OURS, SAME_MACHINE_STD),
        (OLD, SAME_MACHINE_STD),  # a record of an earlier version: unknown, and no difference
        (
            replace(OURS, environment=(("driver", "575.57"),)),
            (SAME_MACHINE_STD**2 + OTHER_SOFTWARE_STD**2) ** 0.5,
        ),
        (replace(OURS, python="3.12.1"), SAME_MACHINE_STD),
        (
            replace(OURS, versions=(*OURS.versions, ("mlflow", "3.0"))),
            SAME_MACHINE_STD,
        ),  # takes no step
        (OLDER, (SAME_MACHINE_STD**2 + OTHER_SOFTWARE_STD**2) ** 0.5),
        (FAR, (SAME_MACHINE_STD**2 + OTHER_HOSTS_STD**2) ** 0.5),
        (replace(OURS, device_name="another"), None),
        (replace(OURS, device="cuda"), None),
        (None, None),
    ],
)
def test_the_more_differs_the_less_it_holds(theirs: Fingerprint | None, off: float | None) -> None:
    assert transfer_std(theirs, OURS) == (None if off is None else pytest.approx(off))
