"""Stacks: the parts of a model before its first block, its blocks, and the parts after them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from workers.models.config import one_sentence
from workers.models.stack_trace import NoStackError, trace_calls
from workers.models.stage_placeholders import BlockForm, BlockPlaceholder
from workers.models.user_code import error_place, errors_as
from workers.plain_torch.blocks import has_float8_sizes

_LEAST_SHARE = 0.1  # of the parameters in all lists; a decoder of few layers still counts
Inputs = Mapping[str, torch.Tensor]
MakeInputs = Callable[[], Inputs]


def find_blocks(module: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the repeated layers of `module` in order, of its encoder and its decoder.

    A list of layers is an `nn.ModuleList` or `nn.Sequential` whose members are of one class
    and hold parameters. It must not lie in another such list: the experts of a layer belong
    to the layer. The longest list counts, and every other one that holds at least a tenth of
    the parameters in lists. A module without such lists has no blocks.
    """
    lists = list(_outermost_lists(module))
    longest = max(map(len, lists), default=0)
    total = sum(map(_parameters, lists))
    return tuple(
        layer
        for layers in lists
        if len(layers) == longest or _parameters(layers) >= _LEAST_SHARE * total
        for layer in layers
    )


def _outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, ...]]:
    for child in module.children():
        # placeholders for blocks of other pipeline stages do not count
        members = tuple(part for part in child.children() if not isinstance(part, BlockPlaceholder))
        kinds = {type(member) for member in members}
        if isinstance(child, nn.ModuleList) and kinds == {nn.ModuleList}:
            yield tuple(layer for layers in members for layer in layers.children())
        elif (
            isinstance(child, nn.ModuleList | nn.Sequential)
            and len(kinds) == 1
            and _parameters(members)
        ):
            yield members
        else:
            yield from _outermost_lists(child)


def _parameters(members: tuple[nn.Module, ...]) -> int:
    return sum(parameter.numel() for member in members for parameter in member.parameters())


def shared_in_blocks(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the first weight that a block shares with another part of the model."""
    blocks = find_blocks(module)
    inside = {id(part) for block in blocks for part in block.modules()}
    holders = Counter(id(weight) for block in blocks for weight in block.parameters())
    outside = (part for part in module.modules() if id(part) not in inside)
    holders.update({id(weight) for part in outside for weight in part._parameters.values()})
    shared = next((weight for weight, count in holders.items() if count > 1), None)
    names = module.named_parameters(remove_duplicate=False)
    return tuple(name for name, weight in names if id(weight) == shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Names of a model's parts in the order in which its forward calls them.

    `before` and `behind` are the parts before and after the blocks. Together they hold all
    parameters that no block holds; modules without parameters are in neither. `tied` are
    parameters that both share, each with its name before and its name after the blocks.
    """

    blocks: tuple[str, ...]
    before: tuple[str, ...]
    behind: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    form: BlockForm


def stack_facts(module: nn.Module, inputs: MakeInputs | None = None) -> dict[str, Any]:
    """Returns the fields of `ModelFacts` on stages: parameters by part, or why there can be none.

    With them comes the share of blocks that can be computed in 8 bits.

    Args:
        module: A whole model; it may be on the meta device.
        inputs: Makes a batch for its forward; None: token ids.
    """
    blocks = find_blocks(module)
    facts: dict[str, Any] = {"block_parameters": tuple(_size([one]) for one in blocks)}
    layers = [part for block in blocks for part in block.modules() if has_float8_sizes(part)]
    facts["float8_share"] = _size(layers) / max(_size(blocks), 1)
    try:
        stack = find_stack(module, inputs)
    except NoStackError as error:
        return facts | {"pipeline_refusal": f"{type(module).__name__} {error}"}
    before, behind = (map(module.get_submodule, one) for one in (stack.before, stack.behind))
    return facts | {"embedding_parameters": _size(before), "head_parameters": _size(behind)}


def find_stack(module: nn.Module, inputs: MakeInputs | None = None) -> Stack:
    """Finds the parts of a model from its structure and from a forward pass without memory.

    Raises:
        NoStackError: If the model is not a stack that can be cut. The reason reads as the rest
            of a sentence that begins with the model's name.
    """
    blocks = _block_names(module)
    parts = tuple(_parts(module, frozenset(blocks)))
    owned = tuple(f"{part}." for part in (*blocks, *parts))
    for name, _ in module.named_parameters(remove_duplicate=False):
        if not name.startswith(owned):
            raise NoStackError(f"uses its parameter {name} outside its layers")
    with errors_as(_untraceable, passing=NoStackError):
        before, form = trace_calls(
            module,
            blocks,
            parts,
            inputs() if inputs else {"input_ids": torch.zeros(2, 3, dtype=torch.long)},
        )
    after = tuple(part for part in parts if part not in before)
    return Stack(
        blocks=blocks,
        before=before,
        behind=after,
        tied=_tied(module, blocks, before, after),
        form=form,
    )


def _untraceable(error: BaseException) -> NoStackError:
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return NoStackError(
            "reads values of tensors in forward, as .item(), bool(), float() or a mask as index do"
            f"{error_place(error)}, and cannot be traced without weights"
        )
    return NoStackError(f"cannot be traced without its weights: {one_sentence(error)}")


def _block_names(module: nn.Module) -> tuple[str, ...]:
    blocks = find_blocks(module)
    if not blocks:
        raise NoStackError("has no repeated blocks")
    names: dict[int, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(id(part), []).append(name)
    aliases = [names[id(block)] for block in blocks]
    if any(len(alias) > 1 for alias in aliases):
        raise NoStackError("has the same block at several places")
    paths = tuple(alias[0] for alias in aliases)
    lists = list(dict.fromkeys(path.rpartition(".")[0] for path in paths))
    if len(lists) > 1:
        raise NoStackError(f"has blocks in {' and in '.join(lists)}, which are not one stack")
    return paths


def _parts(module: nn.Module, blocks: frozenset[str], prefix: str = "") -> Iterator[str]:
    """Outermost modules with parameters that are not blocks and contain none."""
    for name, child in module.named_children():
        full = prefix + name
        if full in blocks or not any(True for _ in child.parameters()):
            continue
        # forward calls the members of a container, not the container
        is_container = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if is_container or any(block.startswith(f"{full}.") for block in blocks):
            yield from _parts(child, blocks, f"{full}.")
        else:
            yield full


def _tied(
    module: nn.Module, blocks: tuple[str, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Returns pairs of names of one parameter, before and after the blocks."""
    owners: dict[int, dict[str, str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        owner = next(part for part in (*blocks, *before, *after) if name.startswith(f"{part}."))
        kind = "before" if owner in before else "after" if owner in after else owner
        owners.setdefault(id(weight), {}).setdefault(kind, name)
    pairs = []
    for names in owners.values():
        if len(names) > 1 and names.keys() != {"before", "after"}:
            shared = " and ".join(names.values())
            raise NoStackError(f"shares a parameter between a block and another part: {shared}")
        if len(names) > 1:
            pairs.append((names["before"], names["after"]))
    return tuple(pairs)


def _size(parts: Iterable[nn.Module]) -> int:
    weights = {id(weight): weight.numel() for part in parts for weight in part.parameters()}
    return sum(weights.values())
