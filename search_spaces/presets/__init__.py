"""Shipped model shapes: the `config.json` of well-known models, without any weights.

Source: each file repeats the published configuration of the model it is named after; the
tests hold the parameter counts that follow from it against the published ones. Fields that
a configuration class derives (such as `head_dim` of Llama) are left out, so that a change
of `hidden_size` carries over.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from search_spaces.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFacts:
    """A preset's size: how many parameters and repeated blocks a model of its shape has.

    `active` are the parameters that one token meets, 0 where it meets all of them.
    """

    parameters: int
    blocks: int
    active: int = 0


def preset_facts() -> dict[str, PresetFacts]:
    """The size of each preset, by name in alphabetical order; as kept, without building one."""
    kept = yaml.safe_load((files(__name__) / "facts.yaml").read_text("utf-8"))
    return {name: PresetFacts(**kept[name]) for name in preset_names()}


def preset_names() -> tuple[str, ...]:
    """Names of all presets, in alphabetical order."""
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def preset_config(name: str) -> dict[str, Any]:
    """The configuration of preset `name`, as its `config.json` has it; a copy of its own.

    Raises:
        ModelError: If there is no such preset; names the nearest one.
    """
    if name not in preset_names():
        raise ModelError(f"there is no preset {name!r}, did you mean {nearest_preset(name)!r}?")
    config: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text("utf-8"))
    return config


def nearest_preset(name: str) -> str:
    """The preset whose name looks most like `name`; the owner in a Hub id does not count."""
    wanted = name.rsplit("/", maxsplit=1)[-1].lower()
    return difflib.get_close_matches(wanted, preset_names(), n=1, cutoff=0.0)[0]
