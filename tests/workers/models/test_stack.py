"""Stacks: models that can be cut into stages, their parts, and refusals of other models."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding

from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2, TINY_LLAMA, on_meta
from workers.models.load import describe
from workers.models.stack import find_stack, shared_in_blocks, stack_facts

WIDTH, ROWS = 8, 20
TRAIN = TrainSpec(global_batch=4, sequence_length=32)


@pytest.mark.parametrize("spec", [TINY_LLAMA, TINY_GPT2, TINY_BERT], ids=lambda spec: spec.name)
def test_every_parameter_lies_before_the_blocks_in_them_or_behind(spec: ModelSpec) -> None:
    facts = describe(spec, TRAIN)

    tied = 512 * 32  # the embedding's rows are the head's too
    assert facts.pipeline_refusal is None
    assert len(facts.block_parameters) == facts.blocks
    counted = sum(facts.block_parameters) + facts.embedding_parameters + facts.head_parameters
    assert counted == facts.parameters + tied


def test_parts_are_those_that_the_forward_calls_before_and_behind() -> None:
    config = {"hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config |= {"vocab_size": 50, "word_embed_proj_dim": 16, "do_layer_norm_before": False}
    module = on_meta("opt", **config)

    stack = find_stack(module)

    assert stack.before == tuple(
        f"model.decoder.{name}" for name in ("embed_tokens", "embed_positions", "project_in")
    )
    assert stack.behind == ("model.decoder.project_out", "lm_head")
    assert stack.tied == (("model.decoder.embed_tokens.weight", "lm_head.weight"),)
    assert stack.blocks == tuple(f"model.decoder.layers.{index}" for index in range(3))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, *_: Any, scale: Any = None) -> Any:
        return hidden + self.inner(hidden)


class Plain(nn.Module):
    """A model as users write it: embeddings, blocks, a head, a loss."""

    def __init__(self, block: type[nn.Module] = Block, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, WIDTH)
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, ROWS)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.start(ids)
        first = hidden
        for layer in self.layers:
            hidden = self.between(layer, hidden, first)
        return cross_entropy(self.end(hidden, first).flatten(0, 1), targets.flatten())

    def start(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.extra(self.tokens(ids))

    def between(self, layer: nn.Module, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return layer(hidden)

    def end(self, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return self.head(hidden)


def a_batch() -> dict[str, torch.Tensor]:
    ids = torch.zeros(2, 3, dtype=torch.long)
    return {"ids": ids, "targets": ids}


def test_a_users_model_is_cut_by_what_its_forward_does() -> None:
    facts = stack_facts(Plain(), a_batch)

    assert facts == {
        "embedding_parameters": ROWS * WIDTH + WIDTH * (WIDTH + 1),
        "block_parameters": (WIDTH * (WIDTH + 1),) * 4,
        "float8_share": 0.0,  # of a width that 16 does not divide
        "head_parameters": ROWS * (WIDTH + 1),
    }


class TupleBlock(Block):
    def forward(self, hidden: torch.Tensor, *_: Any, scale: Any = None) -> Any:
        return hidden + self.inner(hidden), None


class TwoTensorBlock(Block):
    def forward(self, hidden: torch.Tensor, *_: Any, scale: Any = None) -> Any:
        return hidden + self.inner(hidden), hidden


class TupleModel(Plain):
    def between(self, layer: nn.Module, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        given, nothing = layer(hidden=hidden)
        assert nothing is None
        return given


def test_blocks_may_take_a_keyword_and_return_a_tuple() -> None:
    stack = find_stack(TupleModel(TupleBlock), a_batch)

    assert (stack.form.place, stack.form.empty) == ("hidden", 1)


class Activated(Plain):
    def between(self, layer: nn.Module, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.tanh(layer(hidden))


class Unpacking(Plain):
    def between(self, layer: nn.Module, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return layer(hidden)[0]


class Skipping(Plain):
    def end(self, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return self.head(hidden + first)


class Scaled(Plain):
    def between(self, layer: nn.Module, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return layer(hidden, scale=first)


class Adjusting(Plain):
    def between(self, layer: nn.Module, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        self.extra(hidden)
        return layer(hidden)


class Loose(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(WIDTH))


class Borrowing(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.layers[1].inner.weight = self.extra.weight


class Peeking(Plain):
    def end(self, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return self.head(hidden * float(hidden.sum()))


class TiedThrice(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.tokens.weight

    def end(self, hidden: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return self.head(hidden) + hidden @ self.tokens.weight.T


class HeadFirst(Plain):
    def start(self, ids: torch.Tensor) -> torch.Tensor:
        return self.extra(embedding(ids, self.head.weight))


PEEK = Peeking.end.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (TiedThrice(), "reads weight of tokens, which only one stage has"),
        (HeadFirst(), "reads weight of head, which only one stage has"),
        (Activated(), "does not pass hidden states unchanged from block to block"),
        (Unpacking(TwoTensorBlock), "has blocks that return more than hidden states"),
        (Skipping(), "uses tokens.weight after its blocks, bypassing their hidden states"),
        (Scaled(), "passes its blocks other values that depend on weights"),
        (Adjusting(), "calls extra between its blocks"),
        (Loose(), "uses its parameter positions outside its layers"),
        (
            Borrowing(),
            "shares a parameter between a block and another part:"
            " extra.weight and layers.1.inner.weight",
        ),
        (
            Peeking(),
            "reads values of tensors in forward, as .item(), bool(), float() or a mask as index do"
            f" (test_stack.py, line {PEEK})",
        ),
        (nn.Linear(2, 2), "has no repeated blocks"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_no_stack_is_refused_with_the_reason(module: nn.Module, reason: str) -> None:
    refusal = stack_facts(module, a_batch)["pipeline_refusal"]

    assert refusal.startswith(f"{type(module).__name__} {reason}")


def test_architectures_that_are_no_single_stack_are_refused_by_name() -> None:
    t5 = on_meta("t5", "seq2seq", d_model=8, d_ff=8, num_layers=2, num_heads=2, vocab_size=10)
    sizes = {"hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 10}
    albert = on_meta("albert", "masked-lm", **sizes)

    assert stack_facts(t5)["pipeline_refusal"] == (
        "T5ForConditionalGeneration has blocks in encoder.block and in decoder.block,"
        " which are not one stack"
    )
    assert stack_facts(albert)["pipeline_refusal"] == (
        "AlbertForMaskedLM does not call each of its blocks once, in order"
    )


def test_a_weight_that_blocks_share_has_all_its_names() -> None:
    plain, borrowing, module = Plain(), Borrowing(), Plain()
    module.layers[2].inner = module.layers[0].inner

    assert shared_in_blocks(plain) == ()
    assert shared_in_blocks(borrowing) == ("extra.weight", "layers.1.inner.weight")
    assert shared_in_blocks(module) == ("layers.0.inner.weight", "layers.2.inner.weight")


def test_a_model_that_writes_into_its_embeddings_is_not_cut() -> None:
    """A later stage has zeros in their place, which share one place in memory."""
    module = on_meta("ctrl", vocab_size=50, n_embd=32, dff=32, n_layer=3, n_head=4)

    assert stack_facts(module)["pipeline_refusal"] == (
        "CTRLLMHeadModel writes into its embeddings in place, which a later stage does not have"
    )
