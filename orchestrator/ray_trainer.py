"""Ray Train's trainer, without two actors that each take seconds of a core at every start."""

from __future__ import annotations

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

# Shards of Ray Data are handed out by one, and there are none; the other frees the placement group
# of a controller that died, if there is a dashboard to ask, and `ray_leftovers` does so without.
_WITHOUT = (DatasetsCallback, PlacementGroupCleanerCallback)


class LeanTrainer(TorchTrainer):  # type: ignore[misc]
    """A `TorchTrainer` of a group. What it overrides is private to Ray Train (2.60)."""

    def _create_default_callbacks(self) -> list[Any]:
        return [one for one in super()._create_default_callbacks() if not isinstance(one, _WITHOUT)]
