"""Presets: the `config.json` of well-known models, without weights.

Source: each file repeats the published configuration of the model that it is named after; tests
compare the resulting parameter counts with the published ones. Fields that a configuration class
derives (such as `head_dim` of Llama) are left out, so that they follow a change of `hidden_size`.
"""

import difflib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from search_spaces.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFacts:
    """Size of a preset: counts of parameters and of repeated blocks; and what it is trained for."""

    parameters: int
    blocks: int
    active: int = 0  # parameters that one token uses, in a mixture of experts; 0: all
    task: str = "causal-lm"


def preset_facts() -> dict[str, PresetFacts]:
    """Returns the size of each preset by name, in alphabetical order, without building a model."""
    facts = yaml.safe_load((files(__package__) / "facts.yaml").read_text("utf-8"))
    return {name: PresetFacts(**facts[name]) for name in preset_names()}


def preset_names() -> tuple[str, ...]:
    """Returns the names of all presets, in alphabetical order."""
    names = (entry.name for entry in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def preset_config(name: str) -> dict[str, Any]:
    """Returns the configuration of a preset, as in its `config.json`; a new copy on each call.

    Raises:
        ModelError: If there is no such preset; names the closest one.
    """
    if name not in preset_names():
        raise ModelError(f"there is no preset {name!r}; did you mean {nearest_preset(name)!r}?")
    return json.loads((files(__package__) / f"{name}.json").read_text("utf-8"))


def nearest_preset(name: str) -> str:
    """Returns the preset whose name is closest to `name`, ignoring the owner in a Hub id."""
    base_name = name.rsplit("/", maxsplit=1)[-1].lower()
    return difflib.get_close_matches(base_name, preset_names(), n=1, cutoff=0.0)[0]
