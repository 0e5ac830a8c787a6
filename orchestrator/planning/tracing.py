"""Footprints of one model, traced when a space needs them."""

from __future__ import annotations

from search_spaces.footprint import Footprint
from search_spaces.forecast.planned import VariantKey
from search_spaces.spec.schema import SweepSpec
from workers.trace import trace


class Footprints:
    """The variants of one model that were asked for so far, in one footprint."""

    def __init__(self, spec: SweepSpec, device: str) -> None:
        """Nothing is traced yet.

        Args:
            spec: Whose model and training step.
            device: "cpu" or "cuda": which kernels the step uses.
        """
        self._spec = spec
        self._device = device
        self._wanted: dict[VariantKey, None] = {}
        self._footprint: Footprint | None = None

    def __call__(self, wanted: tuple[VariantKey, ...]) -> Footprint:
        """A footprint with at least these variants.

        Raises:
            UserError: If the model cannot be traced; names the operator.
        """
        if self._footprint is None or not self._wanted.keys() >= set(wanted):
            self._wanted |= dict.fromkeys(wanted)
            self._footprint = trace(self._spec, tuple(self._wanted), device=self._device)
        return self._footprint
