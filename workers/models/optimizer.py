"""Facts about `train.optimizer`, and the call of a user's own."""

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search_spaces.errors import ModelError
from search_spaces.facts import OptimizerFacts
from search_spaces.settings.optimizer import Kind, render_optimizer
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.built import BuiltModel
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.function import import_function
from workers.models.user_code import errors_as, importable_from_cwd, user_code_errors
from workers.plain_torch.optimizers import make_optimizer

BuildFake = Callable[[ModelSpec, TrainSpec, FakeMemory], BuiltModel]
# classes of torch that update each element by its own gradients alone
_ELEMENTWISE = (
    *(torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adamax),
)


def optimizer_of(kind: Kind, train: TrainSpec, module: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of a plan.

    Raises:
        ModelError: If a user's function cannot be called, or returns no optimizer.
        ValueError: As `make_optimizer`.
    """
    if kind != "custom":
        return make_optimizer(module, **asdict(render_optimizer(kind, train)))
    whole = module.module if isinstance(module, DistributedDataParallel) else module
    with importable_from_cwd(), user_code_errors(f"train.optimizer {train.optimizer} failed"):
        optimizer = import_function(train.optimizer)(whole)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"train.optimizer {train.optimizer} must return a torch.optim.Optimizer, but returns"
            f" {type(optimizer).__name__}"
        )
    trained = {one for one in whole.parameters() if one.requires_grad}
    held = {one for group in optimizer.param_groups for one in group["params"]}
    if missing := len(trained - held):
        raise ModelError(
            f"train.optimizer {train.optimizer} leaves out {missing} of {len(trained)} trained"
            " weights: freeze them in the model, or add them to a group"
        )
    return optimizer


def optimizer_facts(spec: ModelSpec, train: TrainSpec, build_fake: BuildFake) -> OptimizerFacts:
    """Returns the facts; bytes of muon and of a user's own are counted in a step without memory.

    Raises:
        ModelError: If the optimizer cannot be made or stepped for this model.
    """
    if train.optimizer in ("adamw", "adafactor"):
        return OptimizerFacts()
    if train.optimizer == "sgd":
        # torch's foreach kernels add the decay to a copy of the gradients
        decayed = 4.0 if train.weight_decay else 0.0
        states = 4.0 if train.momentum else 0.0
        return OptimizerFacts(state_bytes=states, update_bytes=decayed, elementwise=True)
    if train.optimizer == "lion":
        return OptimizerFacts(state_bytes=4.0, elementwise=True)
    return _counted(spec, train, build_fake)


def _counted(spec: ModelSpec, train: TrainSpec, build_fake: BuildFake) -> OptimizerFacts:
    def step_error(error: BaseException) -> ModelError:
        return ModelError(
            f"train.optimizer {train.optimizer} cannot be used with {spec.name}: a step on fake"
            f" tensors, which counts its states, fails with {type(error).__name__}: {error}"
        )

    mode = FakeMemory()
    with errors_as(step_error), without_fake_tensor_logs():
        model = build_fake(spec, train, mode)
        if callable(tie := getattr(model.module, "tie_weights", None)):
            tie()  # fake copies of tied weights are two
        trained = [one for one in model.module.parameters() if one.requires_grad]
        with mode:
            kind: Kind = "muon" if train.optimizer == "muon" else "custom"
            optimizer = optimizer_of(kind, train, model.module)
            for one in trained:
                one.grad = torch.zeros_like(one)
            optimizer.step()
    states = [one for state in optimizer.state.values() for one in state.values()]
    total = sum(one.nbytes for one in states if isinstance(one, torch.Tensor) and one.dim())
    return OptimizerFacts(
        state_bytes=total / max(sum(one.numel() for one in trained), 1),
        update_bytes=0.0 if train.optimizer == "muon" else 4.0,  # foreach kernels are the default
        elementwise=type(optimizer) in _ELEMENTWISE,
    )
