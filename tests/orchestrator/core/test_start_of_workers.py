"""The start of the first workers, compilation included, counts towards no budget."""

from orchestrator.core.budget import reason_to_end, start_deadline_seconds, trial_deadline_seconds
from orchestrator.core.events import GroupStarted
from orchestrator.core.state import SweepState, advance
from search_spaces.safety.files import packaged_table
from tests.orchestrator.core.values import state_after
from tests.orchestrator.records import BEGAN, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

START_SECONDS = 200.0


def after_start() -> SweepState:
    """A sweep of two minutes whose first workers took longer than that to start."""
    state = state_after([make_measured()], budget={"minutes": 2, "trial_seconds": 1000})
    started = GroupStarted(
        world_size=2, fingerprint=CPU_FINGERPRINT, start_seconds=START_SECONDS, at=BEGAN
    )
    return advance(state, started)


def test_the_minutes_of_a_budget_begin_when_the_first_workers_are_ready() -> None:
    state = after_start()

    assert reason_to_end(state, BEGAN + START_SECONDS + 119.0) is None
    assert reason_to_end(state, BEGAN + START_SECONDS + 120.0) is not None
    assert trial_deadline_seconds(state, BEGAN + START_SECONDS + 40.0) == 80.0


def test_workers_that_are_replaced_later_count() -> None:
    again = GroupStarted(
        world_size=1,
        fingerprint=CPU_FINGERPRINT,
        start_seconds=2 * START_SECONDS,
        at=BEGAN + START_SECONDS,
    )

    assert advance(after_start(), again).start_seconds == START_SECONDS


def test_workers_may_compile_deepspeeds_operators_as_they_start() -> None:
    plain = make_spec(cluster={"start_minutes": 2})
    with_deepspeed = make_spec(
        cluster={"start_minutes": 2}, space={"engine": ["torch", "deepspeed"]}
    )

    assert start_deadline_seconds(plain) == 120.0
    assert start_deadline_seconds(with_deepspeed) == 120.0 + 1200.0


def test_n10_ray_does_not_end_a_start_before_its_own_limit_does() -> None:
    ray = packaged_table("orchestrator.cluster", "environments.yaml")["driver"]
    a_day = make_spec(cluster={"start_minutes": 24 * 60})

    assert float(ray["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"]) > start_deadline_seconds(a_day)
