"""The repeated layers of a module, which sharding and checkpointing wrap."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from workers.models.passing import Passing

_LEAST_SHARE = 0.1  # of the parameters in all lists; a decoder of few layers still counts


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
