"""Models that raise, exit, diverge or return no loss end in an outcome with its reason.

Ranks are real. Each test ends with a check that the same group still trains.
"""

from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from search_spaces.trial import Crashed, Diverged, DoesNotTrain, Outcome, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import SAID
from tests.workers.values import CALL_SECONDS, a_request, a_spec, odd_model
from workers.engines.torch import TorchTraining
from workers.prepare import prepare
from workers.trial import _build
from workers.worker import Worker

thorough = pytest.mark.thorough
DEEPSPEED = [{"engine": "deepspeed", "zero_stage": stage} for stage in (0, 2, 3)]
IN_A_SENTENCE = f"LookupError: {SAID}"


def run_odd(peers: Group, fault: str, *, zero_stage: int = 0, **config: object) -> Outcome:
    """Returns the outcome of a trial of an odd model, and checks that the group still trains."""
    request = a_request(
        a_spec(model=odd_model(fault, **config)), zero_stage=zero_stage, micro_batch=4
    )
    outcome = peers.run(request)
    peers.assert_trains(zero_stage=zero_stage)
    return outcome


@pytest.mark.parametrize(
    ("zero_stage", "where", "rank"),
    [
        (0, "build", None),
        (3, "backward", 1),
        *(
            pytest.param(stage, where, rank, marks=thorough)
            for stage, where, rank in (
                *((3, "build", 1), (3, "data", None), (0, "data", 1), (0, "forward", None)),
                *((3, "forward", 1), (0, "backward", None)),
            )
        ),
    ],
)
def test_what_user_code_raises_is_a_crash_that_says_where(
    peers: Group, zero_stage: int, where: str, rank: int | None
) -> None:
    outcome = run_odd(peers, "raises", where=where, rank=rank, zero_stage=zero_stage)

    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("exception", where)
    # of ranks that fail at once, the one that rings the alarm first is named
    assert outcome.rank in ((0, 1) if rank is None else (rank,))
    assert outcome.detail == IN_A_SENTENCE
    assert "odd_models.py" in outcome.trace
    assert "this line is for the trace alone" in outcome.trace
    assert outcome.costs is not None


@pytest.mark.parametrize(
    ("fault", "config", "detail"),
    [
        ("exits", {"rank": 1}, "SystemExit: user code called exit"),
        ("keys", {}, "TypeError: forward returned dict, which has loss_lm, loss_cls: return"),
        *(
            pytest.param(*case, marks=thorough)
            for case in (
                ("exits", {}, "SystemExit: user code called exit"),
                ("vector", {}, "TypeError: forward returned one loss per sample, shape (3,)"),
                ("raises", {"rank": 1, "call": 4}, IN_A_SENTENCE),  # in a measured step
                ("keeps", {"call": 2}, IN_A_SENTENCE),  # its error, and with it the model
            )
        ),
    ],
    ids=str,
)
def test_user_code_does_not_end_the_worker(
    peers: Group, fault: str, config: dict[str, Any], detail: str
) -> None:
    outcome = run_odd(peers, fault, **config)

    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("exception", "forward")
    assert outcome.detail.startswith(detail)


@pytest.mark.parametrize(
    ("fault", "rank"), [("nan", 1), pytest.param("infinite", None, marks=thorough)]
)
def test_a_loss_that_is_no_number_has_diverged(peers: Group, fault: str, rank: int | None) -> None:
    outcome = run_odd(peers, fault, rank=rank, call=3)  # the longest samples, step 0, step 1

    assert isinstance(outcome, Diverged)
    assert (outcome.step, outcome.loss) == (1, {"nan": "nan", "infinite": "inf"}[fault])
    assert outcome.costs is not None
    assert outcome.costs.total_seconds > 0


@pytest.mark.parametrize("plan", [{}, {"zero_stage": 3}, *DEEPSPEED], ids=str)
@pytest.mark.parametrize(
    ("fault", "config", "norms"),
    [
        ("nan", {"where": "backward", "rank": 1}, ("nan", "inf")),
        ("zero", {"where": "backward"}, ("0",)),  # as of weights that are detached from the loss
        ("none", {"where": "adapter"}, ("0",)),
    ],
)
def test_a_gradient_that_is_zero_or_no_number_does_not_train(
    pair: Group, plan: dict[str, Any], fault: str, config: dict[str, Any], norms: tuple[str, ...]
) -> None:
    """The loss is a finite number."""
    spec = a_spec(model=odd_model(fault, **config))
    outcome = pair.run(a_request(spec, micro_batch=4, **plan))

    assert isinstance(outcome, DoesNotTrain), outcome
    assert outcome.norm in norms
    assert outcome.costs is not None
    pair.assert_trains(**plan)


@pytest.mark.parametrize("zero_stage", [pytest.param(0, marks=thorough), 3])
def test_weights_that_each_rank_draws_for_itself_are_the_first_ranks(
    peers: Group, zero_stage: int
) -> None:
    """Sharded without that, the second half of a weight would be the second rank's."""
    alike, own = (
        a_spec(model=odd_model("none", by_rank=by_rank), train={"seed": 7})
        for by_rank in (False, True)
    )
    expected = peers.call(_first_weight, a_request(alike, zero_stage=zero_stage))

    assert peers.call(_first_weight, a_request(own, zero_stage=zero_stage)) == expected


def _first_weight(worker: Worker, request: TrialRequest) -> list[float]:
    mesh = worker.group.acquire(CALL_SECONDS, request.plan)
    training, _ = _build(request, prepare(request.spec), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    weight = next(training.module.parameters())
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    values: list[float] = whole.detach().flatten().tolist()
    return values
