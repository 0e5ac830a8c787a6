"""Models from a user's function, which returns a module, a batch maker, and where its data ends."""

import contextlib
import difflib
import importlib
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from search_spaces.errors import DataError, ModelError
from search_spaces.facts import BatchFacts, ModelFacts, TensorFacts
from search_spaces.specification.schema import PICKLE, ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.data.user_batches import BatchMaker, SampleNumbers, inputs_of
from workers.models.block_calls import training_facts
from workers.models.built import PROBE_SAMPLES, BuiltModel, seeded
from workers.models.fake_memory import FakeMemory, conversions_of_fake_weights
from workers.models.lora import adapters_of, add_adapters, trainable_parameters
from workers.models.stack import find_blocks
from workers.models.tensor_plan import parallel_facts
from workers.models.trust import check_trusted
from workers.models.user_code import (
    UserCodeError,
    error_summary,
    importable_from_cwd,
    user_code_errors,
)

SHAPE_SAMPLES = 32  # samples whose shapes are compared
MOST_STEPS = 1000  # more than a trial and its validation take, unless objective.max_steps is raised
_UNKNOWN = "the function fails on fake tensors, and model.tensor_plan is not set"
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule", "DeepSpeedEngine")
received: dict[str, bytes] = {}  # pickles of another node, by their names in specifications
_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedBatches:
    """A user's batch maker, whose sample numbers begin again at 0 where its data ends.

    Attributes:
        function: The user's function, as package.module:function.
        make: Makes a batch of samples by their numbers.
        samples: Of the data; None if the function did not return how many.
        widened: Types of values that become fp32, as those of the weights did.
    """

    function: str
    make: BatchMaker
    samples: int | None = None
    widened: frozenset[torch.dtype] = frozenset()

    def __call__(self, numbers: SampleNumbers) -> Any:
        """Returns a batch.

        Raises:
            DataError: If the data has no samples of these numbers.
        """
        if self.samples is not None:
            numbers = tuple(number % self.samples for number in numbers)
        try:
            batch: Any = self.make(numbers)
            if not isinstance(batch, Mapping):
                return batch
            shapes = [value.shape for value in batch.values() if getattr(value, "shape", ())]
            if shapes and all(0 in shape for shape in shapes):  # slices end without an error
                raise IndexError("the batch is empty")
        except (IndexError, KeyError, StopIteration) as error:
            hint = "if the data ends before, return (module, batch maker, number of samples)"
            if self.samples is not None:
                hint = f"any numbers from 0 to {self.samples - 1} may come together"
            which = " to ".join(map(str, sorted({min(numbers), max(numbers)})))
            raise DataError(
                f"the batch maker of {self.function} fails for sample {which}:"
                f" {error_summary(error)}; {hint}"
            ) from error
        return {
            name: value.float() if getattr(value, "dtype", None) in self.widened else value
            for name, value in batch.items()
        }


def is_function(spec: ModelSpec) -> bool:
    """Tells a name of the form package.module:function from others."""
    return ":" in spec.name


def describe_function(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts from a call on the meta device.

    A driver calls it in a process of its own: see `workers.models.isolation`.

    A function may be unable to build there, or may raise for reasons of its own. The facts
    then say 0 parameters and 0 blocks, and the first trial crashes with the traceback.

    Raises:
        ModelError: If there is no such function, if the user does not trust its module, if it does
            not return (module, batch maker), or if the module cannot take `train`'s adapters.
    """
    lora = adapters_of(train)
    module: nn.Module | None = None
    batch_maker: NumberedBatches | None = None
    with importable_from_cwd():
        # outside the guard below: a wrong name must raise and not count as a failed build
        import_function(spec.name)
        with (
            contextlib.suppress(UserCodeError),
            user_code_errors(spec.name),
            seeded(0),
            torch.device("meta"),
        ):
            module, batch_maker = call_function(spec)
    if module is not None and lora is not None:
        with seeded(0), torch.device("meta"):
            add_adapters(spec.name, module, lora)
    return ModelFacts(
        name=spec.title,
        architecture=type(module).__name__ if module is not None else spec.title,
        parameters=sum(weight.numel() for weight in module.parameters()) if module else 0,
        trainable=_trainable(spec, module) if module is not None else None,
        widened=tuple(sorted(str(one)[len("torch.") :] for one in batch_maker.widened))
        if batch_maker is not None
        else (),
        base=lora.base if lora else None,
        blocks=len(find_blocks(module)) if module is not None else 0,
        loss_refusal="a function's model computes its own loss",
        tile_refusal="a function's model may name its MLPs as it likes",
        attentions=("sdpa",),  # the plan's attention is not applied; sdpa is Plimsoll's choice
        packing=(),
        **_parallel_facts(spec, module, batch_maker),
    )


def build_function(spec: ModelSpec, train: TrainSpec) -> BuiltModel:
    """Builds the model by calling the function, its weights drawn from `train.seed`.

    Errors of the function itself pass through.

    Raises:
        ModelError: If there is no such function, if the user does not trust its module, if it does
            not return (module, batch maker), or if the module cannot take `train`'s adapters.
    """
    with importable_from_cwd(), seeded(train.seed):
        module, batch_maker = call_function(spec)
        if lora := adapters_of(train):
            add_adapters(spec.name, module, lora)
    return BuiltModel(
        module=module,
        blocks=find_blocks(module),
        task=None,
        vocab_size=None,
        batch_maker=batch_maker,
        tensor_plan=tuple(spec.tensor_plan.items()),
    )


def build_fake_function(spec: ModelSpec, train: TrainSpec, mode: FakeMemory) -> BuiltModel:
    """Builds the model of fake tensors of `mode`, with adapters on the meta device.

    Raises:
        ModelError: As `build_function`.
    """
    with importable_from_cwd():
        import_function(spec.name)  # a first load in `mode` would leave its data without values
    with mode, conversions_of_fake_weights():
        model = build_function(spec, train.model_copy(update={"method": "full"}))
    if lora := adapters_of(train):
        with torch.device("meta"):  # peft moves adapters to their weights; fake ones cannot move
            add_adapters(spec.name, model.module, lora)
    return model


def _parallel_facts(
    spec: ModelSpec, module: nn.Module | None, batch_maker: NumberedBatches | None
) -> dict[str, Any]:
    if module is None or batch_maker is None:
        return {} if spec.tensor_plan else {"tensor": TensorFacts(refusal=_UNKNOWN)}
    inputs = lru_cache(lambda: inputs_of(module, batch_maker(PROBE_SAMPLES)))
    facts = {**parallel_facts(module, spec.tensor_plan, inputs), **training_facts(module, inputs)}
    looked_at = _looked_at(module, batch_maker)
    if (uneven := _uneven_shapes(looked_at)) and "pipeline_refusal" not in facts:
        facts["pipeline_refusal"] = f"{type(module).__name__} {uneven}"
    return facts | {"batches": _batch_facts(looked_at, batch_maker)}


_Inputs = Mapping[str, tuple[str, tuple[int, ...]]]  # type and shape of each, () for no tensor


def _looked_at(module: nn.Module, batch_maker: NumberedBatches) -> Mapping[int, _Inputs]:
    """Returns what the module gets for some samples, by their numbers; a failure ends it."""
    samples, inputs = batch_maker.samples or SHAPE_SAMPLES, dict[int, _Inputs]()
    with contextlib.suppress(UserCodeError), user_code_errors("a batch"):
        for number in range(0, samples, -(-samples // SHAPE_SAMPLES)):
            inputs[number] = {
                name: (str(getattr(one, "dtype", type(one).__name__)), getattr(one, "shape", ()))
                for name, one in inputs_of(module, batch_maker((number,))).items()
            }
    return inputs


def _batch_facts(inputs: Mapping[int, _Inputs], batch_maker: NumberedBatches) -> BatchFacts:
    entries: dict[str, str] = {}
    for name, (kind, _) in next(iter(inputs.values()), {}).items():
        sizes = [*zip(*(one[name][1][1:] for one in inputs.values() if name in one), strict=False)]
        ranges = (f"{min(one)}..{max(one)}" if len({*one}) > 1 else f"{one[0]}" for one in sizes)
        entries[name] = f"{kind.removeprefix('torch.')}[{', '.join(ranges)}]".removesuffix("[]")
    make, samples = batch_maker.make, batch_maker.samples
    name = getattr(make, "source", f"function {getattr(make, '__name__', type(make).__name__)}")
    return BatchFacts(source=name, samples=samples, entries=tuple(entries.items()))


def _uneven_shapes(inputs: Mapping[int, _Inputs]) -> str | None:
    """Returns why stages cannot exchange tensors of one shape, None if all batches have one."""
    first = next(iter(inputs.values()), {})
    for number, shapes in inputs.items():
        for name, (_, shape) in shapes.items():
            if shape != (expected := first.get(name, ("", None))[1]):
                return (
                    f"gets {name} of shape {expected and tuple(expected)} for sample 0 and of"
                    f" {tuple(shape)} for sample {number}, while stages exchange tensors of one"
                    " shape: pad all samples to one length"
                )
    return None


def call_function(spec: ModelSpec) -> tuple[nn.Module, NumberedBatches]:
    """Calls a user's function, whose own errors pass through; weights become fp32.

    Raises:
        ModelError: If there is no such function, or it does not return (module, batch maker) or
            (module, batch maker, number of samples).
    """
    returned = import_function(spec.name)(**spec.config)
    parts = tuple(returned) if isinstance(returned, tuple | list) else ()
    is_pair = len(parts) in (2, 3) and isinstance(parts[0], nn.Module) and callable(parts[1])
    if not is_pair:
        names = ", ".join(type(part).__name__ for part in parts or (returned,))
        raise ModelError(
            f"{spec.title} returned {f'({names})' if parts else names}, must return (module, batch"
            " maker) or (module, batch maker, number of samples): an nn.Module, a function of"
            " sample numbers, and where the data ends, if it does; in Python, give a function that"
            " returns a module alone with data"
        )
    module, make = parts[:2]
    if (wrapper := type(module).__name__) in _WRAPPERS:
        raise ModelError(
            f"{spec.name} returned {wrapper}, must return the module inside: a plan says how it is"
            " wrapped and compiled"
        )
    _turn_off_caches(module)
    batches = NumberedBatches(
        function=spec.title,
        make=make,
        samples=_sample_count(spec.name, make, parts[2:]),
        widened=_widen_weights(module),
    )
    return module, batches


def _sample_count(name: str, make: Any, said: Sequence[Any]) -> int | None:
    """Returns how many samples the data has, by the function or by `len` of the batch maker."""
    count = said[0] if said else len(make) if hasattr(make, "__len__") else None
    if count is None:
        return None
    if isinstance(count, Integral) and int(count) > 0:
        return int(count)
    raise ModelError(f"{name} says that its data has {count!r} samples, must be 1 or more")


def _widen_weights(module: nn.Module) -> frozenset[torch.dtype]:
    """Makes a module fp32, in place, unless its trained weights are; returns the types before.

    Frozen weights stay as they are beside trained ones in fp32, as adapters are.
    """
    weights = [one for one in module.parameters() if one.is_floating_point()]
    if all(one.dtype == torch.float32 for one in weights if one.requires_grad):
        return frozenset()
    before = frozenset(one.dtype for one in weights) - {torch.float32}
    module._apply(lambda one: one.float() if one.dtype in before else one)
    return before


def _trainable(spec: ModelSpec, module: nn.Module) -> int | None:
    trained = trainable_parameters(module)
    if not trained:
        raise ModelError(f"{spec.name} returned a module without a weight that requires a gradient")
    return None if trained == sum(one.numel() for one in module.parameters()) else trained


def _turn_off_caches(module: nn.Module) -> None:
    """Turns off caches of keys and values, to which a recomputed block would append again.

    They serve generation; transformers turns them off for its own recomputation.
    """
    for part in module.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False


def import_function(name: str) -> Callable[..., Any]:
    """Imports package.module:function, or loads a pickle's, if the user trusts it.

    Raises:
        ModelError: If there is no such function, or the user does not trust it.
    """
    if (place := name.rpartition(":")[0]).endswith(PICKLE):
        check_trusted(place)
        return _unpickled(place)
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ModelError(f"{name!r} is not of the form package.module:function")
    module_name, function_name = matched["module"], matched["function"]
    check_trusted(module_name)
    with user_code_errors(f"{module_name} cannot be imported"):
        module = importlib.import_module(module_name)
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(function_name, names, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise ModelError(f"{module_name} has no function {function_name}{hint}")
    # a trusted module imports functions of others, such as `subprocess.run`
    check_trusted(getattr(function, "__module__", None) or type(function).__module__)
    return function


@lru_cache(maxsize=1)
def _unpickled(place: str) -> Callable[..., Any]:
    with user_code_errors(f"{place} cannot be loaded; the program that made it makes it again"):
        content = received[place] if place in received else Path(place).read_bytes()
        return pickle.loads(content)  # noqa: S301 the user trusts it
