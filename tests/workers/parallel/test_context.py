"""Context ranks: the same training as whole rows, in parts of their tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AttentionInterface

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group, Groups, peaks_of
from tests.workers.one_step import built
from tests.workers.parity.comparison import Parity
from tests.workers.parity.layouts import COMMON
from tests.workers.values import LLAMA, a_request, a_spec
from workers.data.collate import IGNORED, Layout, MicroBatch, collate, part_of_tokens
from workers.worker import Worker

LAYOUTS = {name: knobs for name, knobs in COMMON.items() if name.startswith("context ranks")}
MORE = pytest.mark.thorough
# attention to windows shorter than the rows, and fewer keys than ranks
WINDOWS: dict[str, Any] = {
    "name": "mistral-7b",
    "config": LLAMA["config"] | {"sliding_window": 6, "num_key_value_heads": 2, "head_dim": 16},
}


@pytest.mark.parametrize(
    "model",
    [
        "llama",
        *(pytest.param(one, marks=MORE) for one in ("gpt2", "mixtral", "qwen3", "deepseek_v2")),
    ],
)
def test_context_ranks_train_as_the_plain_loop(groups: Groups, model: str) -> None:
    rows = list(Parity(groups).of_model("causal-lm", model, LAYOUTS))

    assert [(row.layout, row.ending, row.detail) for row in rows] == [
        (name, "same", "") for name in LAYOUTS
    ]


@pytest.mark.parametrize(
    ("ranks", "knobs"),
    [
        pytest.param(2, {"batching": "packed"}),
        pytest.param(4, {"zero_stage": 3}, marks=MORE),
        pytest.param(4, {"batching": "packed", "zero_stage": 3}, marks=MORE),
    ],
)
def test_windows_of_attention_reach_over_parts(
    groups: Groups, ranks: int, knobs: dict[str, Any]
) -> None:
    spec = a_spec(model=WINDOWS)
    whole = groups.of(1).run(a_request(spec, data=1, micro_batch=2, accumulation=4))
    divided = groups.of(ranks).run(
        a_request(spec, data=ranks, context=ranks, micro_batch=2, accumulation=4, **knobs)
    )

    assert isinstance(whole, Measured), whole
    assert isinstance(divided, Measured), divided
    assert divided.losses == pytest.approx(whole.losses, rel=1e-4)
    assert divided.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)


def _attentions_that_hold_a_group(worker: Worker, request: TrialRequest) -> int:
    """Counts what transformers' registry of attention keeps of groups, once a trial is over."""
    ours = built(worker, request)
    ours.step()
    ours.training.close()
    kept = AttentionInterface()["plimsoll_context"].__closure__ or ()
    return sum(isinstance(cell.cell_contents, dist.ProcessGroup) for cell in kept)


def test_the_registry_of_attention_holds_no_group(pair: Group) -> None:
    """Peers of a rank that fails in a later trial would wait for as long as it did."""
    request = a_request(context=2, accumulation=4)

    assert pair.call(_attentions_that_hold_a_group, request) == [0, 0]


def _batch(batching: str) -> MicroBatch:
    samples = [torch.arange(1, length + 1).int().numpy() for length in (3, 8)]
    layout = Layout(
        task="causal-lm",
        batching=batching,  # type: ignore[arg-type]
        sequence_length=16,
        vocab_size=100,
        mask_token_id=0,
        seed=0,
        multiple=4,
    )
    return collate([0, 1], samples, layout)


@pytest.mark.parametrize("batching", ["padded", "packed"])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_have_each_label_once_at_the_token_before(batching: str, parts: int) -> None:
    whole = _batch(batching)
    each = [part_of_tokens(whole, part, parts) for part in range(parts)]

    tokens = torch.cat([part.inputs["input_ids"] for part in each], dim=1)
    assert torch.equal(tokens, whole.inputs["input_ids"])
    kept = [part for part in each if part.targets]
    labels = torch.cat([part.inputs["shift_labels"].flatten() for part in kept])
    assert sorted(labels[labels != IGNORED].tolist()) == [2, 2, 3, 3, 4, 5, 6, 7, 8]
    assert sum(part.targets for part in each) == whole.targets == 9
    starts = [part.inputs["position_ids"][0, 0].item() for part in each]
    width = tokens.shape[1] // parts
    assert starts[:2] == [0, width] or batching == "packed"


def test_a_part_without_labels_has_a_loss_that_does_not_count() -> None:
    rows = torch.ones(1, 8, dtype=torch.int64)
    labels = torch.tensor([[1, 1, 1, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED]])
    inputs = {"input_ids": rows, "labels": labels}
    batch = MicroBatch(inputs=inputs, samples=1, tokens=3, targets=2)

    first, second = (part_of_tokens(batch, part, 2) for part in (0, 1))

    assert (first.targets, second.targets) == (2, 0)
    assert (second.inputs["labels"] != IGNORED).sum() == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": torch.ones(1, 7)}, "rows of 7 tokens cannot be divided over 2 ranks"),
        ({"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])}, "padded on the left"),
    ],
)
def test_rows_that_cannot_be_divided_are_refused(change: dict[str, Any], words: str) -> None:
    whole = _batch("padded")
    inputs = {"input_ids": torch.ones(1, 8), "labels": torch.ones(1, 8)} | change

    with pytest.raises(ValueError, match=words):
        part_of_tokens(replace(whole, inputs=inputs), 0, 2)


@pytest.mark.thorough
def test_two_context_ranks_hold_fewer_activations_of_a_row() -> None:
    """Prints what `docs/knobs.md` says; the resident memory of a rank is measured."""
    wide = {**LLAMA, "config": {**LLAMA["config"], "intermediate_size": 1024}}
    spec = a_spec(
        model=wide,
        data={"lengths": {8192: 1}},
        cluster={"memory_gib": 4.0},
        train={"sequence_length": 8192, "global_batch": 2},
    )
    requests = [
        a_request(spec, context=ranks, micro_batch=1, accumulation=ranks) for ranks in (1, 2)
    ]
    whole, divided = peaks_of(*requests)

    assert divided < 0.75 * whole
