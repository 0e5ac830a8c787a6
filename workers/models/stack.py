"""A model as a stack: what lies before the first block, in the blocks, and behind the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from workers.models.config import one_sentence
from workers.models.stack_trace import NoStackError, trace
from workers.models.stage_placeholders import BlockForm, Passing
from workers.models.user_code import any_fault_as

_LEAST_SHARE = 0.1  # of the parameters in all lists; a decoder of few layers still counts
Inputs = Mapping[str, torch.Tensor]
MakeInputs = Callable[[], Inputs]


def find_blocks(module: nn.Module) -> tuple[nn.Module, ...]:
    """The repeated layers of `module` in order: of an encoder and a decoder alike.

    A list of layers is an `nn.ModuleList` or `nn.Sequential` whose members are of one class
    and hold parameters, and that lies in no other such list (the experts of a layer belong to
    the layer). The longest is taken, and every other one that holds a fair share of the
    parameters. Nothing is found in a module that repeats nothing.
    """
    lists = list(_outermost_lists(module))
    longest = max(map(len, lists), default=0)
    total = sum(map(_parameters, lists))
    kept = [
        layers
        for layers in lists
        if len(layers) == longest or _parameters(layers) >= _LEAST_SHARE * total
    ]
    return tuple(layer for layers in kept for layer in layers)


def _outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, ...]]:
    for child in module.children():
        # what stands for blocks of other pipeline stages is none
        members = tuple(part for part in child.children() if not isinstance(part, Passing))
        if isinstance(child, nn.ModuleList | nn.Sequential) and _are_alike(members):
            yield members
        else:
            yield from _outermost_lists(child)


def _are_alike(members: tuple[nn.Module, ...]) -> bool:
    return len({type(member) for member in members}) == 1 and _parameters(members) > 0


def _parameters(members: tuple[nn.Module, ...]) -> int:
    return sum(parameter.numel() for member in members for parameter in member.parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """Parameters by place, and why the stack cannot be cut into stages (None if it can)."""

    block_parameters: tuple[int, ...]
    embedding_parameters: int
    head_parameters: int
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Names of a model's parts in the order in which its forward calls them.

    `before` and `behind` hold all parameters that no block holds; what has no parameters is in
    neither. `tied` are parameters of a part behind that are also of a part before: each with its
    name there and its name behind.
    """

    blocks: tuple[str, ...]
    before: tuple[str, ...]
    behind: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    form: BlockForm


def stack_facts(module: nn.Module, inputs: MakeInputs | None = None) -> StackFacts:
    """Looks at a module, which may be on the meta device.

    Args:
        module: A whole model.
        inputs: Makes a batch that its forward takes; None: token ids.
    """
    block_parameters = tuple(
        sum(weight.numel() for weight in block.parameters()) for block in find_blocks(module)
    )
    try:
        stack = find_stack(module, inputs)
    except NoStackError as refusal:
        return StackFacts(
            block_parameters=block_parameters,
            embedding_parameters=0,
            head_parameters=0,
            refusal=f"{type(module).__name__} {refusal}",
        )
    return StackFacts(
        block_parameters=block_parameters,
        embedding_parameters=_size(module, stack.before),
        head_parameters=_size(module, stack.behind),
        refusal=None,
    )


def find_stack(module: nn.Module, inputs: MakeInputs | None = None) -> Stack:
    """The parts of a model, from its structure and from a forward pass without memory.

    Raises:
        NoStackError: If it is no stack of blocks that can be cut; says why, in words that follow
            the model's name.
    """
    blocks = _block_names(module)
    parts = tuple(_parts(module, frozenset(blocks)))
    _refuse_loose_parameters(module, (*blocks, *parts))
    with any_fault_as(_untraceable, passing=NoStackError):
        calls = trace(module, blocks, parts, inputs() if inputs else _token_ids())
    behind = tuple(part for part in parts if part not in calls.before)
    return Stack(
        blocks=blocks,
        before=calls.before,
        behind=behind,
        tied=_tied(module, blocks, calls.before, behind),
        form=calls.form,
    )


def _untraceable(error: BaseException) -> NoStackError:
    return NoStackError(f"cannot be traced without its weights: {one_sentence(error)}")


def _token_ids() -> Inputs:
    return {"input_ids": torch.zeros(2, 3, dtype=torch.long)}


def _block_names(module: nn.Module) -> tuple[str, ...]:
    blocks = find_blocks(module)
    if not blocks:
        raise NoStackError("has no repeated blocks")
    names: dict[int, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(id(part), []).append(name)
    found = [names[id(block)] for block in blocks]
    if any(len(called) > 1 for called in found):
        raise NoStackError("has the same block at several places")
    lists = list(dict.fromkeys(called[0].rpartition(".")[0] for called in found))
    if len(lists) > 1:
        raise NoStackError(f"has blocks in {' and in '.join(lists)}: they are no single stack")
    return tuple(called[0] for called in found)


def _parts(module: nn.Module, blocks: frozenset[str], prefix: str = "") -> Iterator[str]:
    """Outermost modules with parameters that are no blocks and hold none."""
    for name, child in module.named_children():
        full = prefix + name
        if full in blocks or not any(True for _ in child.parameters()):
            continue
        # a container is called by its members' names
        if any(block.startswith(f"{full}.") for block in blocks) or _is_container(child):
            yield from _parts(child, blocks, f"{full}.")
        else:
            yield full


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict)


def _refuse_loose_parameters(module: nn.Module, parts: tuple[str, ...]) -> None:
    for name, _ in module.named_parameters(remove_duplicate=False):
        if not any(name.startswith(f"{part}.") for part in parts):
            raise NoStackError(f"uses its parameter {name} outside of its layers")


def _tied(
    module: nn.Module, blocks: tuple[str, ...], before: tuple[str, ...], behind: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Pairs of names of one parameter, before the blocks and behind them.

    Raises:
        NoStackError: If a block shares a parameter with another part.
    """
    owners: dict[int, dict[str, str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        owner = next(part for part in (*blocks, *before, *behind) if name.startswith(f"{part}."))
        kind = "before" if owner in before else "behind" if owner in behind else owner
        owners.setdefault(id(weight), {}).setdefault(kind, name)
    pairs = []
    for names in owners.values():
        if len(names) > 1 and names.keys() != {"before", "behind"}:
            shared = " and ".join(names.values())
            raise NoStackError(f"shares a parameter between a block and another part: {shared}")
        if len(names) > 1:
            pairs.append((names["before"], names["behind"]))
    return tuple(pairs)


def _size(module: nn.Module, parts: tuple[str, ...]) -> int:
    weights = {
        id(weight): weight.numel()
        for part in parts
        for weight in module.get_submodule(part).parameters()
    }
    return sum(weights.values())
