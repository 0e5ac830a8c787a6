"""Functions of users whose plans are compared: losses, modules and models of transformers."""

from collections.abc import Mapping
from typing import Any

from search_spaces.specification.schema import SweepSpec
from tests.workers.loss_models import LOSSES
from tests.workers.parity.architectures import function_spec
from tests.workers.parity.families import AROUND_LLAMA, MODELS
from tests.workers.parity.modules import BATCHES, LAYERS, OUTPUTS, SHAPES

_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "class weights": {"says_targets": True},
    "sample weights": {"as_arrays": True},
    "labels": {"ends": 19},
}


def function_specs() -> dict[str, SweepSpec]:
    """Returns the specification of each function, by a name."""
    kinds = dict.fromkeys([*LAYERS, *SHAPES, *OUTPUTS, *BATCHES])
    return {
        **{
            f"loss, {loss}": function_spec(
                "loss_models:make", loss=loss, **_ARGUMENTS.get(loss, {})
            )
            for loss in LOSSES
        },
        **{f"module, {kind}": function_spec("parity.modules:make", kind=kind) for kind in kinds},
        **{
            f"model, {name}": function_spec("parity.families:make", name=name)
            for name in [*MODELS, *AROUND_LLAMA]
        },
    }
