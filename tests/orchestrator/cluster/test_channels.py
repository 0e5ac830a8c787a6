"""Channels and queues of groups; without Ray, their methods are called."""

import asyncio

import pytest

from orchestrator.cluster import channels
from orchestrator.cluster.channels import GroupChannel, GroupQueues
from search_spaces.trial import Outcome, TrialRequest
from tests.outcomes import make_measured, make_oom
from tests.workers.values import a_request


async def _run(
    request: TrialRequest, announced: dict[int, Outcome], agreed: Outcome | None
) -> Outcome | None:
    channel = GroupChannel(2)
    running = asyncio.ensure_future(channel.run(request))
    for rank in range(2):
        assert await channel.next(rank) == request
    for rank, outcome in announced.items():
        await channel.announce(rank, outcome)
    if agreed is not None:
        await asyncio.sleep(0.01)
        await channel.post(agreed)
    assert await channel.announced() == [announced[rank] for rank in sorted(announced)]
    return await asyncio.wait_for(running, 200)


@pytest.mark.parametrize(
    ("announced", "agreed"),
    [
        ({1: make_oom()}, None),
        ({1: make_oom()}, make_oom()),
        ({0: make_measured(), 1: make_measured()}, make_measured()),
        ({}, make_measured()),
    ],
    ids=["one failed", "one failed and all agree", "measured", "no announcement"],
)
def test_a_failure_ends_the_wait_for_the_others(
    announced: dict[int, Outcome], agreed: Outcome | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "AGREE_SECONDS", 0.05 if agreed is None else 200.0)

    assert asyncio.run(_run(a_request(), announced, agreed)) == agreed


def test_a_group_that_is_given_up_is_killed_even_if_it_has_yet_to_start() -> None:
    queues, runner = GroupQueues(), b"late"

    async def silent() -> list[bytes]:
        await queues.expire("late")
        for group in ("late", "other"):
            await queues.beat(group, group.encode())
        found, _ = await queues.silent_runners(60.0)
        return found

    assert asyncio.run(silent()) == [runner]
