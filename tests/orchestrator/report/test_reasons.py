"""Words for each reason, note and outcome."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from orchestrator.core import notes, reasons
from orchestrator.core.fingerprints import Difference
from orchestrator.report.reasons import (
    capacity_words,
    note_words,
    outcome_sentence,
    reason_words,
    replacement_words,
    stop_words,
)
from search_spaces.trial import (
    Cancelled,
    Crashed,
    Diverged,
    DoesNotTrain,
    DriverDied,
    Estimate,
    NodesLost,
    NoRoom,
    Outcome,
    OutOfMemory,
    Refused,
    Stopped,
    TimedOut,
    WorkersFailed,
)
from tests.outcomes import make_measured

DEAD = Crashed(cause="worker_died", rank=1, phase="forward", detail="ActorDiedError")
ROOM = NoRoom(ranks=8, ranks_per_node=4, minutes=10.0, available=((2, 4),))

TRIED: tuple[tuple[reasons.TrialReason, str], ...] = (
    (reasons.IsBaseline(), "baseline"),
    (reasons.Sampled(sampler="tpe"), "proposed by tpe"),
    (reasons.Validates(trial=3), "validation of trial 3"),
    (reasons.Remeasures(trial=3), "measures trial 3 again"),
    (
        reasons.ChecksMachine(trial=3, suspect=5),
        "repeats trial 3 to see if the machine or trial 5's plan failed",
    ),
    (
        reasons.Retry(trial=2, cause=DriverDied(times=3)),
        "trial 2 was running when its driver died, and 2 before it",
    ),
    (
        reasons.Retry(trial=2, cause=WorkersFailed(outcome=DEAD)),
        "trial 2 crashed in forward: ActorDiedError",
    ),
    (reasons.Retry(trial=2, cause=Stopped(by="SIGTERM")), "retry of trial 2: stopped by SIGTERM"),
    (reasons.Promising(fits=0.9), "expected to be the fastest that fits; 90% likely to fit"),
    (
        reasons.Promising(fits=1.0, gain=-0.3, changes=(("a", 1), ("b", 2), ("c", 3), ("d", 4))),
        "expected 30% slower than the best; 100% likely to fit; tests a 1, b 2 and 2 more against"
        " the best",
    ),
    (
        reasons.Promising(metric="samples_per_price", fits=0.5, reaches=0.4, gain=0.1),
        "expected 10% more samples per price than the best; 50% likely to fit, 40% likely to reach"
        " the required speed",
    ),
    (
        reasons.Promising(metric="headroom", fits=0.5, gain=0.25, forecast=False),
        "expected peak 20% lower than the best's; 50% likely to fit; without a forecast",
    ),
    (
        reasons.Promising(fits=0.5, gain=0.1, measured_by="old"),
        "expected 10% faster than the best; 50% likely to fit; measured in study old, repeated here"
        " for comparison",
    ),
)
ENDED: tuple[tuple[reasons.StopReason, str], ...] = (
    (reasons.BudgetSpent(limit="trials", amount=24), "the budget of 24 trials is used up"),
    (reasons.BudgetSpent(limit="gpu_hours", amount=2), "the budget of 2 GPU-hours is used up"),
    (
        reasons.NotWorthIt(trial_seconds=40.0, saved_seconds=36.0, training_hours=10.0),
        "the best next trial takes 40 s and is expected to save 36.0 s of a 10 h training run",
    ),
    (reasons.AllTried(plans=7), "all 7 plans have been tried"),
    (reasons.NoImprovement(trials=5), "the last 5 trials found no better plan"),
    (
        reasons.SameFailure(trials=4, cause="exception", error="ValueError: so"),
        "all 4 trials so far failed with the same error: ValueError: so",
    ),
    (reasons.ClusterSilent(), "the cluster does not answer"),
    (
        reasons.MachineFailed(cause="disk_full", error="OSError: so"),
        "a disk is full, which fails any plan: OSError: so",
    ),
    (Stopped(by="Ctrl-C"), "stopped by Ctrl-C"),
    (
        ROOM,
        "no room for 8 ranks, at least 4 of them on each node for 10 minutes"
        " (cluster.wait_minutes); available: 2 nodes with room for 4 ranks",
    ),
)
REPLACED: tuple[tuple[reasons.ReplacementReason, str], ...] = (
    (reasons.DeadlineMissed(), "a trial missed its deadline"),
    (reasons.WorkersCrashed(cause="device_error"), "a trial crashed (device error)"),
    (
        reasons.MemoryNotReleased(residual_bytes=65 * 2**20),
        "65 MiB were not released after a trial",
    ),
    (reasons.OtherRanks(needed=4, present=2), "the next plan needs 4 ranks, the group has 2"),
    (
        reasons.OtherEnvironment(environment=()),
        "the next plan needs processes started with no allocator settings",
    ),
    (reasons.OtherNodes(), "the next plan runs on other nodes"),
    (reasons.FreshWorkers(), "a validation runs in fresh workers"),
    (reasons.WorkersGone(), "its workers are gone"),
)
NOTED: tuple[tuple[notes.Note, str], ...] = (
    (notes.Message(text="so"), "so"),
    (
        notes.StudyRemoved(folder="/tmp/ray/job"),
        "the study is kept in /tmp/ray/job, which Ray removes some time after the job: set"
        " study.folder to an absolute path or study.storage to a database",
    ),
    (
        notes.NodesUnused(kinds=("", "A100", "A100")),
        "nodes with other GPUs are not used: 3 (A100, no name); cluster.accelerator chooses the"
        " kind to use",
    ),
    (
        notes.HeadFull(groups=3, room=2),
        "cluster.groups is 3, but the head node has memory for 2: it may be killed; each group"
        " takes 550 MiB there, in addition to its workers",
    ),
    (notes.ForecastsEnded(error="so"), "trials have no forecast: so"),
    (
        notes.GroupReplaced(reason=reasons.WorkersGone()),
        "the worker group is replaced: its workers are gone",
    ),
    (
        notes.PlanBlamed(trial=2, loss=NodesLost(nodes=("a",))),
        "node a was lost during trial 2, as in earlier trials: the plan counts as failed",
    ),
    (
        notes.TrialWaits(trial=2, room=NoRoom(ranks=1, minutes=0.5)),
        "trial 2 waits for room for 1 rank, up to 0.5 minutes; available: none",
    ),
    (
        notes.TrialsTransferred(study="old", trials=0),
        "no trials transferred from study old: it ran on another device",
    ),
    (
        notes.TrialsTransferred(
            study="old",
            trials=2,
            std=0.1,
            differences=(Difference(name="ray", there=None, here="2.60"),),
            hosts=(2,),
        ),
        "2 trials transferred from study old, uncertainty 10 % (ray missing, here 2.60; 2 hosts)",
    ),
    (
        notes.FingerprintsDiffer(
            trials=1,
            differences=(
                Difference(name="driver", there="575.57", here="580.65"),
                Difference(name="MALLOC_ARENA_MAX", there="", here="1"),
            ),
        ),
        "1 earlier trial ran on other hardware or software (driver 575.57, here 580.65;"
        " MALLOC_ARENA_MAX unset, here 1): forecasts ignore them, and speeds may differ for this"
        " reason alone",
    ),
)
OUTCOMES: tuple[tuple[Outcome, str], ...] = (
    (make_measured(100.0), "100.00 samples/s ± 1.5 %"),
    (
        # of two blocks of steps that differed: a bound of the interval is near 0
        make_measured(100.0, samples_per_second=Estimate(value=100.0, low=2.0, high=84_000.0)),
        "100.00 samples/s ± 100 % or more",
    ),
    (
        OutOfMemory(
            where="device",
            wanted_bytes=150,
            limit_bytes=100,
            rank=0,
            phase="backward",
            detail="no",
            costs=None,
        ),
        "out of device memory in backward, wanted 150 % of the limit",
    ),
    (TimedOut(deadline_seconds=60.0, detail="killed"), "timed out after 60 s"),
    (DEAD, "crashed in forward: ActorDiedError"),
    (Refused(rule="cluster_has_room", detail="too many"), "refused (cluster_has_room): too many"),
    (Diverged(step=3, loss="nan", costs=None), "loss was nan at step 3"),
    (DoesNotTrain(norm="0", costs=None), "does not train: the norm of its gradient was 0"),
    (Cancelled(cause=Stopped(by="SIGTERM")), "cancelled: stopped by SIGTERM"),
)


KINDS: tuple[tuple[object, Callable[[Any], str], tuple[tuple[Any, str], ...]], ...] = (
    (reasons.TrialReason, reason_words, TRIED),
    (reasons.StopReason, stop_words, ENDED),
    (reasons.ReplacementReason, replacement_words, REPLACED),
    (notes.Note, note_words, NOTED),
    (Outcome, outcome_sentence, OUTCOMES),
)


@pytest.mark.parametrize(("union", "words_of", "examples"), KINDS)
def test_every_kind_has_words(
    union: object, words_of: Callable[[Any], str], examples: tuple[tuple[Any, str], ...]
) -> None:
    assert [words_of(value) for value, _ in examples] == [words for _, words in examples]
    assert {type(value) for value, _ in examples} == set(get_args(union))


def test_capacity_is_counted_by_size() -> None:
    nodes = ((2, 8), (1, 4))
    assert capacity_words(nodes) == "2 nodes with room for 8 ranks, 1 node with room for 4 ranks"


@pytest.mark.parametrize(
    ("union", "examples"), [(reasons.TrialReason, TRIED), (reasons.StopReason, ENDED)]
)
def test_reasons_survive_json(union: Any, examples: tuple[tuple[Any, str], ...]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(union)

    for reason, _ in examples:
        assert adapter.validate_json(adapter.dump_json(reason)) == reason
