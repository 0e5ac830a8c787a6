"""Trainers whose configurations are known, and the meaning of their keys: see `trainers.yaml`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from search_spaces.presets.catalogue import preset_names
from search_spaces.safety.files import packaged_table

Taken = Mapping[str, Any] | str  # keys of a specification, or the reason against a key
AUTO = "auto, so that something else decides"
NO_PRESET = "no preset has this shape"
HF_OPTIMIZERS = {  # values of `optim`
    "adamw_fused": "adamw_torch_fused",
    "adamw_foreach": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "adamw_8bit_paged": "paged_adamw_8bit",
}
NO_VALUE = "Plimsoll has no such value"
_SHARED = ("hf", "fsdp", "blanks", "reasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A trainer; the fields are explained in `trainers.yaml`."""

    name: str
    own: tuple[str, ...]
    writes: tuple[str, ...]
    fixed: Mapping[str, Any]
    takes: Mapping[str, Any]
    defaults: Mapping[str, Any]
    always: Mapping[str, Any]
    compared: tuple[str, ...] = ()

    def owns(self, key: str) -> bool:
        """Returns True for a key that is this trainer's."""
        return any(key == own or key.startswith(f"{own}.") for own in self.own)

    def meaning(self, key: str) -> Any:
        """Returns the entry of a key, those of a linked file of DeepSpeed among them."""
        deepspeed = key.removeprefix("deepspeed.")
        if deepspeed != key:
            return trainers()["DeepSpeed"].takes.get(deepspeed)
        short = key.removeprefix("fsdp.").replace("fsdp_config.fsdp_", "fsdp_config.")
        return self.takes.get(key, self.takes.get(short))


@cache
def trainers() -> Mapping[str, Trainer]:
    """Returns the known trainers by name."""
    return {
        name: Trainer(
            name=name,
            own=tuple(table["own"]),
            writes=tuple(chain(*table.get("writes", ()))),
            fixed=table.get("fixed", {}),
            takes={
                key: entry
                for part in (table, *(_tables()[like] for like in table.get("like", ())), table)
                for key, entry in part.get("takes", {}).items()
            },
            defaults=table.get("defaults", {}),
            always=table["always"],
            compared=tuple(table.get("compared", ())),
        )
        for name, table in _tables().items()
        if name not in _SHARED
    }


def _tables() -> Any:
    return packaged_table(__package__, "trainers.yaml")


def take(trainer: Trainer, key: str, value: Any) -> Taken:
    """Returns what becomes of a key and its value."""
    if value == "auto":
        return AUTO
    entry = trainer.meaning(key)
    if (value is None or value in ("", [], {})) and "none" not in (entry or ""):
        return "not set"
    if isinstance(entry, dict):
        entry = entry.get(str(value).lower(), entry.get("*", NO_VALUE))
    if isinstance(entry, dict):
        return entry
    if entry == NO_VALUE:
        return NO_VALUE
    if entry is None:
        return "off" if value is False else reason_against(key)
    try:
        return _FUNCTIONS[entry](value) if entry.startswith("=") else {entry: value}
    except (TypeError, ValueError, AttributeError):  # such as a list in place of a name
        return NO_VALUE


def write(trainer: Trainer, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that a file of the trainer needs to be taken as these values: see `take`.

    Args:
        trainer: Its `writes` are the keys.
        values: Values by key of a specification; what is missing or None is not written.
    """
    keys = {key: _word(trainer.meaning(key), values) for key in trainer.writes}
    return {**{key: word for key, word in keys.items() if word is not None}, **trainer.fixed}


def _word(entry: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(entry, str):
        word = _WORDS[entry](values) if entry.startswith("=") else values.get(entry)
        return list(word) if isinstance(word, tuple) else word
    meanings = {word: meaning for word, meaning in entry.items() if isinstance(meaning, dict)}
    fitting = [
        (len(meaning), word)
        for word, meaning in meanings.items()
        if word != "*" and meaning and all(values.get(key) == meaning[key] for key in meaning)
    ]
    if fitting:
        return _value(max(fitting, key=lambda one: one[0])[1])
    other = entry.get("*")
    if isinstance(other, str) and (word := _word(other, values)) is not None:
        return word
    off = [word for word in meanings if word != "*" and (not meanings[word] or word == "false")]
    return _value(off[0]) if off else None


def _value(word: str) -> Any:
    return yaml.safe_load(word) if word in ("true", "false") or word[:1].isdigit() else word


def reason_against(key: str) -> str:
    """Returns the reason against a key of no table."""
    for reason, pattern in _tables()["reasons"].items():
        if re.search(pattern, key):
            return str(reason)
    return "Plimsoll has no such setting"


def _optimizer(value: Any) -> Taken:
    name = str(value).lower()
    for knob, word in HF_OPTIMIZERS.items():
        if name == word:
            return {"train.optimizer": "adamw", "baseline.optimizer": knob}
    if "8bit" in name and "adam" in name:
        paged = "_paged" if "paged" in name else ""
        return {"train.optimizer": "adamw", "baseline.optimizer": f"adamw_8bit{paged}"}
    if name == "adafactor":
        return {"baseline.optimizer": "adafactor"}
    stem = name.partition("_")[0]
    return {"train.optimizer": "adamw" if stem in ("adam", "fusedadam") else stem}


def _modules(value: Any) -> Taken:
    names = _names(value)
    every = names in (["all"], ["all-linear"])
    return {"train.lora.target_modules": "all-linear" if every else names}


def _names(value: Any) -> list[str]:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)


def _fsdp(value: Any) -> Taken:
    """Takes `full_shard auto_wrap offload`, such a list, or true."""
    words = value.split() if isinstance(value, str) else [] if value is True else list(value or ())
    if not value:
        return {}
    stages = {"shard_grad_op": 2, "hybrid_shard_zero2": 2, "no_shard": 0}
    taken = {"baseline.zero_stage": min((stages.get(word, 3) for word in words), default=3)}
    offload = {"baseline.offload_optimizer": "cpu", "baseline.offload_parameters": "cpu"}
    return taken | (offload if "offload" in words else {})


def _files(value: Any) -> Taken:
    """Takes data files that are all here, and the field of their texts."""
    entries = value if isinstance(value, list) else [value]
    paths = [entry.get("path", "") if isinstance(entry, dict) else str(entry) for entry in entries]
    if not all(Path(path).is_file() for path in paths):
        return "no such file here: set data.files"
    fields = {entry["field"] for entry in entries if isinstance(entry, dict) and "field" in entry}
    return {"data.files": paths} | ({"data.field": fields.pop()} if len(fields) == 1 else {})


def parts_left_out(value: Any) -> list[str]:
    """Returns the keys of data sets in a list that `_files` does not read."""
    entries = [entry for entry in value if isinstance(entry, dict)] if type(value) is list else []
    return sorted({str(name) for entry in entries for name in entry} - {"path", "field"})


def _preset(value: Any) -> Taken:
    """Takes a folder with a configuration, else the preset of a shape, such as `llama3-8B`."""
    if Path(str(value), "config.json").is_file():
        return {"model.name": str(value)}
    name = str(value).lower().rpartition("/")[2].replace("llama3", "llama-3")
    found = [preset for preset in (name, name.replace("3.1-", "3-")) if preset in preset_names()]
    return {"model.name": found[0]} if found else NO_PRESET


def _fsdp_words(values: Mapping[str, Any]) -> str | None:
    if not (stage := values.get("baseline.zero_stage")):
        return None
    offload = " offload" if values.get("baseline.offload_parameters") == "cpu" else ""
    return f"{'full_shard' if stage == 3 else 'shard_grad_op'} auto_wrap{offload}"


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {  # the inverse of `_FUNCTIONS`
    "=optimizer": lambda values: HF_OPTIMIZERS[values["baseline.optimizer"]],
    "=fsdp": _fsdp_words,
    "=preset": lambda values: f"./assets/hf/{values['model.name']}",
    "=modules": lambda values: values.get("train.lora.target_modules"),
    "=saved_modules": lambda values: values.get("train.lora.modules_to_save") or None,
    "=lora_rank": lambda values: values.get("train.lora.rank"),
}
_FUNCTIONS: Mapping[str, Callable[[Any], Taken]] = {
    "=optimizer": _optimizer,
    "=modules": _modules,
    "=saved_modules": lambda value: {"train.lora.modules_to_save": _names(value)},
    "=lora_rank": lambda value: {"train.lora.rank": value, "train.lora.alpha": 2 * value},
    "=fsdp": _fsdp,
    "=files": _files,
    "=preset": _preset,
}
