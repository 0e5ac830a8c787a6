"""Tensor plans: the ways to split an architecture's projections over tensor ranks."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from torch import nn

from search_spaces.facts import TensorFacts
from search_spaces.safety.files import packaged_table
from workers.models.experts import expert_layers
from workers.models.stack import MakeInputs, find_blocks, shared_in_blocks, stack_facts

Style = Literal[
    "colwise",  # outputs are split, and stay split
    "packed_colwise",  # the same for gate and up in one projection
    "qkv_colwise",  # the same for query, key and value in one projection
    "rowwise",  # inputs are split, outputs summed
    "colwise_gather_output",  # outputs are split, then gathered
    "rowwise_split_input",  # whole inputs are split, outputs summed
    "embedding_rowwise",  # the vocabulary is split
    "heads",  # an embedding with one number per head: heads are split
    "replicated_with_grad_allreduce",  # whole weights, used by each rank on its own heads
]
STYLES: tuple[Style, ...] = get_args(Style)
ALIASES: Mapping[str, Style] = MappingProxyType(  # older names in transformers
    {"colwise_rep": "colwise_gather_output", "rowwise_rep": "rowwise_split_input"}
)
PARTS: Mapping[Style, int] = MappingProxyType({"packed_colwise": 2, "qkv_colwise": 3})
COLUMN_STYLES = ("colwise", "packed_colwise", "qkv_colwise", "colwise_gather_output")
ROW_STYLES = ("rowwise", "rowwise_split_input")
VOCABULARY_STYLES = ("colwise_gather_output", "embedding_rowwise")  # for modules outside blocks
_NONE: Mapping[str, str] = MappingProxyType({})
_HEADS = (("attention heads", "num_attention_heads"), ("key-value heads", "num_key_value_heads"))


def _tables() -> Any:
    return packaged_table(__package__, "tensor_plans.yaml")


def local_counts(kind: type[nn.Module]) -> tuple[str, ...]:
    """Returns the attributes of a class of modules that count what is split over ranks."""
    return tuple(_tables()["local_counts"].get(kind.__name__, ()))


def matches(pattern: str, name: str) -> bool:
    """Tells if a pattern means a module: `*` is one part of a name, `**.` any beginning."""
    regex = re.escape(pattern).replace(r"\*\*\.", r"(?:.+\.)?").replace(r"\*", r"[^.]+")
    return re.fullmatch(regex, name) is not None


def is_conv1d(module: nn.Module) -> bool:
    """Recognises GPT-2's linear layer, without importing transformers."""
    pytorch_utils = sys.modules.get("transformers.pytorch_utils")
    return pytorch_utils is not None and isinstance(module, pytorch_utils.Conv1D)


class CannotSplitError(ValueError):
    """A model cannot be split over tensor ranks; the text gives the reason in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """The treatment of the modules of one model, by name.

    Every legal degree splits `splits`. It splits `vocabulary` only if it divides the rows; tied
    weights are split alike or not at all. `summed` are whole modules that each rank uses on its
    own heads, so that their gradients are summed over the ranks. `regions` are modules whose
    input only split projections read, so that it is copied or gathered once for all of them.
    """

    splits: tuple[tuple[str, Style], ...]
    vocabulary: tuple[tuple[str, Style], ...]
    summed: tuple[str, ...]
    regions: tuple[str, ...]


def tensor_plan(module: nn.Module, given: Mapping[str, str] = _NONE) -> TensorPlan:
    """Returns the plan of a module, which may be on the meta device.

    The first source that has one wins: `given`, the module's attribute `tensor_plan`,
    transformers, Plimsoll's own plans. Each maps patterns of module names to styles.

    Raises:
        CannotSplitError: If there is no plan, or if it contains an impossible split.
    """
    patterns = _patterns(module, given)
    modules = dict(module.named_modules())
    ids = {id(part) for block in find_blocks(module) for part in block.modules()}
    inside = {name for name, part in modules.items() if id(part) in ids}
    splits: dict[str, Style] = {}
    vocabulary: dict[str, Style] = {}
    summed: list[str] = []
    for name, style in _matching_modules(module, patterns):
        if style == "replicated_with_grad_allreduce":
            summed.append(name)
        elif name not in inside and style in VOCABULARY_STYLES:
            vocabulary |= dict(_tied(module, name))
        else:
            splits[name] = style
    if not splits:
        raise CannotSplitError(f"{_architecture(module)}: its plan splits none of its modules")
    for name, style in splits.items():
        _check(module, name, modules[name], style)
    _refuse_numbers_of_heads(module, splits)
    return TensorPlan(
        splits=tuple(splits.items()),
        vocabulary=tuple(vocabulary.items()),
        summed=tuple(summed),
        regions=tuple(_regions(module, splits, summed)),
    )


def tensor_facts(module: nn.Module, given: Mapping[str, str] = _NONE) -> TensorFacts:
    """Returns the facts on tensor parallelism of a module, which may be on the meta device."""
    try:
        plan = tensor_plan(module, given)
    except CannotSplitError as error:
        return TensorFacts(refusal=str(error), sequence_refusal=str(error))
    return TensorFacts(
        divisors=tuple(_divisors(module, plan)),
        sequence_refusal=_sequence_refusal(module, plan),
        by_transformers=bool(getattr(module, "tp_plan", None)),
    )


def projection_sizes(projection: Any) -> tuple[int, int] | None:
    """Returns inputs and outputs of a linear projection, None for anything else."""
    if is_conv1d(projection):
        return projection.nx, projection.nf
    if isinstance(projection, nn.Linear):
        return projection.in_features, projection.out_features
    return None


def _patterns(module: nn.Module, given: Mapping[str, str]) -> Mapping[str, str]:
    attribute = getattr(module, "tensor_plan", None)
    patterns: Mapping[str, str] = given or (attribute if isinstance(attribute, Mapping) else _NONE)
    if patterns:
        return patterns
    if any(expert_layers(module)):
        raise CannotSplitError(
            f"{_architecture(module)} is a mixture of experts, whose experts are not split over"
            " tensor ranks"
        )
    upstream = getattr(module, "tp_plan", None) or _NONE
    if any(style in STYLES and style != "embedding_rowwise" for style in upstream.values()):
        return upstream
    patterns = _tables()["plans"].get(_model_type(module), _NONE)
    if not patterns:
        raise CannotSplitError(
            f"{_architecture(module)} has no tensor-parallel plan, neither in transformers nor in"
            " model.tensor_plan"
        )
    return patterns


def _matching_modules(
    module: nn.Module, patterns: Mapping[str, str]
) -> Iterator[tuple[str, Style]]:
    """Yields the names of modules that match the patterns, each with its style."""
    names = [name for name, _ in module.named_modules()]
    weights = [name for name, _ in module.named_parameters()]
    for pattern, word in patterns.items():
        style = ALIASES.get(word, word)
        matching = [name for name in names if matches(pattern, name)]
        if not matching and not any(matches(pattern, name) for name in weights):
            continue  # a plan may name modules that only other sizes of the architecture have
        if style not in STYLES or not matching:
            raise CannotSplitError(
                f"{_architecture(module)}: its plan splits {pattern} as {word}, which is not"
                " supported"
            )
        yield from ((name, style) for name in matching)


def _tied(module: nn.Module, name: str) -> Iterator[tuple[str, Style]]:
    """Yields the module and all that share its weight, if each of them can be split by rows."""
    weight = getattr(module.get_submodule(name), "weight", None)
    styles: dict[str, Style] = {}
    for other, owner in module.named_modules():
        if weight is None or owner._parameters.get("weight") is not weight:
            continue
        if type(owner) is nn.Embedding and owner.max_norm is None and not owner.sparse:
            styles[other] = "embedding_rowwise"
        elif type(owner) is nn.Linear:
            styles[other] = "colwise_gather_output"
        else:
            return
    yield from styles.items()


def _regions(module: nn.Module, splits: Mapping[str, Style], summed: list[str]) -> Iterator[str]:
    """Yields parents of column-wise splits whose other weights read only their outputs."""
    blocks = {id(block) for block in find_blocks(module)}
    planned = splits.keys() | set(summed)
    columns = [name for name, style in splits.items() if style in COLUMN_STYLES]
    parents = dict.fromkeys(name.rpartition(".")[0] for name in columns)
    for parent in parents:
        owner = module.get_submodule(parent)
        if id(owner) in blocks or owner._parameters:
            continue
        inner = (
            f"{parent}.{name}" for name, part in owner.named_modules() if part._parameters and name
        )
        if all(name in planned for name in inner):
            yield parent


def _check(module: nn.Module, name: str, part: nn.Module, style: Style) -> None:
    if style in ("heads", "embedding_rowwise"):
        is_possible = isinstance(part, nn.Embedding)
    else:
        is_possible = projection_sizes(part) is not None
    if not is_possible:
        raise CannotSplitError(
            f"{_architecture(module)}: its plan splits {name} as {style}, which is impossible for"
            f" a {type(part).__name__}"
        )


def _refuse_numbers_of_heads(module: nn.Module, splits: Mapping[str, Style]) -> None:
    """Refuses a weight with one number per head beside split projections, as Doge has."""
    config = text_config(module)
    heads = {getattr(config, field, None) for _, field in _HEADS} - {None, 1}
    columns = (name for name, style in splits.items() if style in COLUMN_STYLES)
    for parent in dict.fromkeys(name.rpartition(".")[0] for name in columns):
        for name, weight in module.get_submodule(parent)._parameters.items():
            if weight is not None and weight.dim() == 1 and len(weight) in heads:
                raise CannotSplitError(
                    f"{_architecture(module)}: {parent}.{name} has one number per head, which no"
                    " plan splits"
                )


def _divisors(module: nn.Module, plan: TensorPlan) -> Iterator[tuple[str, int]]:
    """Yields counts that a degree must divide; those that follow from others are left out."""
    config = text_config(module)
    labels: dict[int, str] = {}
    if any(style in ("colwise", "qkv_colwise") for _, style in plan.splits):
        for label, field in _HEADS:
            count = getattr(config, field, None)
            if isinstance(count, int):
                labels.setdefault(count, label)
    for name, style in plan.splits:
        sizes = projection_sizes(module.get_submodule(name))
        if sizes is None:
            continue
        kind = "inputs" if style in ROW_STYLES else "outputs"
        size = sizes[style not in ROW_STYLES] // PARTS.get(style, 1)
        is_inner = size == getattr(config, "intermediate_size", None)
        label = "intermediate size" if is_inner else f"{kind} of {name.rpartition('.')[2]}"
        if not all(size % count == 0 for count in labels) or not labels:
            labels.setdefault(size, label)
    yield from ((label, count) for count, label in labels.items())


def _sequence_refusal(module: nn.Module, plan: TensorPlan) -> str | None:
    if _model_type(module) not in _tables()["sequence_types"]:
        return f"{_architecture(module)} was not shown to train correctly with its sequence split"
    blocks = {id(block) for block in find_blocks(module)}
    for name, style in plan.splits:
        parent = name.rpartition(".")[0]
        is_gathered = parent in plan.regions or id(module.get_submodule(parent)) in blocks
        if style in COLUMN_STYLES and not is_gathered:
            return f"{_architecture(module)}: {parent} has weights besides its split projections"
    return None


def text_config(module: nn.Module) -> Any:
    """Returns the configuration of a transformers model's text part; None of other modules."""
    config: Any = getattr(module, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _model_type(module: nn.Module) -> Any:
    return getattr(getattr(module, "config", None), "model_type", None)


def _architecture(module: nn.Module) -> str:
    return type(module).__name__


def parallel_facts(
    module: nn.Module, tensor_plan: Mapping[str, str], inputs: MakeInputs | None = None
) -> dict[str, Any]:
    """Returns the fields of `ModelFacts` on pipeline and tensor parallelism.

    Args:
        module: A whole model.
        tensor_plan: The specification's own plan, empty if it has none.
        inputs: Makes a batch for a model that does not take token ids.
    """
    return {
        **stack_facts(module, inputs),
        "shared_in_blocks": shared_in_blocks(module),
        "tensor": tensor_facts(module, tensor_plan),
    }
