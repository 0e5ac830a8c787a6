"""The state derived from events, complete and in any order of endings."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.events import Event, GroupStarted, Noted, SweepEnded, TrialEnded
from orchestrator.core.notes import Message
from orchestrator.core.objective import throughput
from orchestrator.core.reasons import AllTried
from orchestrator.core.state import advance
from search_spaces.trial import Outcome
from tests.orchestrator.core.values import started, state_after
from tests.orchestrator.records import (
    BEGAN,
    make_plan,
    make_record,
    make_space,
    make_spec,
    some_plans,
)
from tests.outcomes import CPU_FINGERPRINT, every_outcome, make_measured, make_oom


def test_each_event_changes_what_it_tells_of() -> None:
    state = state_after([make_measured()])
    assert (state.resumed, len(state.records)) == (1, 1)

    state = advance(state, GroupStarted(world_size=2, fingerprint=CPU_FINGERPRINT, at=BEGAN))
    assert state.fingerprint == CPU_FINGERPRINT

    trial = started(1, make_plan())
    state = advance(state, trial)
    assert state.running == (trial,)

    record = make_record(1, make_plan(), make_oom(1.2))
    state = advance(state, TrialEnded(record=record, at=BEGAN))
    assert state.running == ()
    assert state.records[-1] == record
    assert state.resumed == 1

    note, end = (
        Noted(note=Message(text="replaced"), at=BEGAN),
        SweepEnded(reason=AllTried(plans=2), at=BEGAN),
    )
    state = advance(advance(state, note), end)
    assert (state.notes, state.ended) == ((note,), end)


rates = st.floats(1.0, 100.0, allow_nan=False)
outcomes = st.one_of(
    st.sampled_from(every_outcome()), st.builds(make_measured, rates, st.floats(0.1, 1.0))
)


def events_of(endings: list[Outcome], order: st.DataObject) -> list[Event]:
    """Draws trials that start in sequence and end in any order, with notes in between."""
    space = make_space(make_spec())
    plans = some_plans(space, len(endings))
    events: list[Event] = [started(number, plan) for number, plan in enumerate(plans)]
    numbers = order.draw(st.permutations(range(len(endings))))
    for number in numbers:
        record = make_record(number, plans[number], endings[number])
        events += [
            TrialEnded(record=record, at=record.ended_at),
            Noted(note=Message(text="so"), at=BEGAN),
        ]
    return events


@given(endings=st.lists(outcomes, max_size=8), order=st.data())
def test_no_record_is_ever_lost_and_the_best_is_the_fastest_that_fits(
    endings: list[Outcome], order: st.DataObject
) -> None:
    state = state_after([make_measured()])
    told = list(state.records)
    for event in events_of(endings, order):
        before = state
        state = advance(state, event)
        told += [event.record] if isinstance(event, TrialEnded) else []
        assert state.records[: len(before.records)] == before.records
        assert list(state.records) == told
    assert state.running == ()
    assert len(state.notes) == len(endings)

    fitting = [record for record in state.records if state.objective.feasible(record)]
    assert state.best is not None
    assert state.best in fitting
    assert throughput(state.best) == max(map(throughput, fitting))
