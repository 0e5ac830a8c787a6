"""A surface as people think of it, by stage, setting and micro-batch; and their search by hand."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search.competitors.base import Strategy
from benchmarks.search.surfaces import Surface

_STAGES = ("zero_stage", "sharding")
_ONLY = 0.0  # the micro-batch where a surface has none, or a candidate does not say

Setting = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """The place of a candidate: its stage, its micro-batch, and the setting of all other knobs."""

    setting: Setting
    stage: int
    micro: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The places of all candidates.

    A surface without micro-batch has one of them everywhere, and one without stage is of stage 0.
    """

    places: tuple[Place, ...]

    @classmethod
    def of(cls, surface: Surface) -> Layout:
        """Reads the places of a surface's candidates, by the knobs' names."""
        micro = "micro_batch" if "micro_batch" in surface.distributions else None
        stage = next((name for name in _STAGES if name in surface.distributions), None)
        rest = [name for name in surface.distributions if name not in (micro, stage)]
        return cls(
            places=tuple(
                Place(
                    setting=tuple(candidate[name] for name in rest),
                    stage=stage_of(candidate[stage]) if stage else 0,
                    micro=_number(candidate[micro]) if micro else _ONLY,
                )
                for candidate in surface.candidates
            )
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, in the order of the candidates."""
        return tuple(dict.fromkeys(place.setting for place in self.places))

    def rows(self, setting: Setting, stage: int) -> dict[float, int]:
        """The candidate of each micro-batch, from the smallest; the first where several share it.

        Two shardings of one stage (full and hybrid, say) share their micro-batches.
        """
        return self.groups().get((stage, setting), {})

    def stages(self, setting: Setting) -> list[int]:
        """The stages of a setting, from the lowest."""
        return sorted({place.stage for place in self.places if place.setting == setting})

    def groups(self) -> dict[tuple[int, Setting], dict[float, int]]:
        """Micro-batches by stage and setting."""
        found: dict[tuple[int, Setting], dict[float, int]] = defaultdict(dict)
        for row, place in enumerate(self.places):
            found[place.stage, place.setting].setdefault(place.micro, row)
        return {key: dict(sorted(rows.items())) for key, rows in found.items()}


def stage_of(value: Any) -> int:
    """Returns what of a model is sharded, as ZeRO counts it: 0 nothing, 3 all."""
    words = str(value).lower()
    if digit := re.search(r"zero[ _-]?([0-3])|^([0-3])(\.0)?$|stage[ _-]?([0-3])", words):
        return int(digit[1] or digit[2] or digit[4])
    if re.search(r"grad_op", words):
        return 2
    return 3 if re.search(r"fsdp|hsdp|full|zero", words) else 0


def _number(value: Any) -> float:
    try:
        number = float(value)
    except ValueError:
        return _ONLY
    return number if math.isfinite(number) else _ONLY


def largest_micro_batch(surface: Surface, random: np.random.Generator) -> Strategy:
    """Grows the micro-batch until it runs out of memory, then backs off; setting by setting.

    Stages come from the one that shards least, the settings of a stage in a random order. Where a
    setting ran out, micro-batches between the last that ran and the first that did not are tried
    from the largest, until one runs. A surface without micro-batch is tried setting by setting,
    one without stage as if it had one.
    """
    groups = [*Layout.of(surface).groups().items()]
    order = sorted(random.permutation(len(groups)).tolist(), key=lambda place: groups[place][0][0])
    for place in order:
        yield from _grown(groups[place][1])


def _grown(rows: dict[float, int]) -> Strategy:
    offered = [*rows]
    ran, wanted = -1, 0  # places among those offered
    while wanted < len(offered):
        trial = yield rows[offered[wanted]]
        if trial.rate is None:
            for smaller in range(wanted - 1, ran, -1):
                trial = yield rows[offered[smaller]]
                if trial.rate is not None:
                    return
            return
        ran = wanted
        doubled = (at for at in range(ran + 1, len(offered)) if offered[at] >= 2 * offered[ran])
        largest = len(offered) - 1
        wanted = next(doubled, largest if ran < largest else len(offered))
