"""Turns the configuration of another trainer into a specification: every key is taken or listed."""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.errors import Fault, SpecError
from search_spaces.plan import knob_problem
from search_spaces.safety.files import is_file, packaged_table
from search_spaces.specification.load import validated
from search_spaces.specification.template import one_line, origin_lines
from search_spaces.specification.trainer_configs import tables
from search_spaces.specification.trainer_configs.document import read_document, tree_of

_WIDTH = 96
_NAME, _BATCH, _RANKS = "model.name", "train.global_batch", "cluster.workers"
_PARTS = ("_micro_batch", "_accumulation", "_global_batch", "_shards", "_part", _RANKS)
_DEGREES = ("tensor", "pipeline", "replicas")
_RATIO = "_warmup_ratio"
_BETAS: Mapping[str, float] = {"_beta1": 0.9, "_beta2": 0.999}  # Trainer's defaults
_LINKS = ("deepspeed", "deepspeed_config.deepspeed_config_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A specification made from the configuration of a trainer.

    Attributes:
        trainer: Name of the trainer.
        text: The specification as YAML, with the origin of each value, and the lists below.
        blanks: What the file does not say: a key and what to write, a line each.
        omitted: What was left out: a reason and its keys, a line each.
    """

    trainer: str
    text: str
    blanks: tuple[str, ...]
    omitted: tuple[str, ...]


class Settings:
    """Values by key of a specification, their origins, and the keys left out for each reason."""

    def __init__(self) -> None:
        self.impossible: list[str] = []  # sentences on keys with values that no specification has
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.omitted: dict[str, list[str]] = {}

    def add(self, values: Mapping[str, Any], origin: str) -> None:
        """Adds values, and lists keys that said otherwise as left out."""
        for key, value in values.items():
            earlier, origins = self.origins.get(key), [one_line(origin)]
            if earlier is not None and self.values.get(key) == value:
                origins.insert(0, earlier)
            elif earlier is not None and key in self.values:
                self.omit(earlier, f"{origins[0]} says otherwise")
            self.values[key], self.origins[key] = value, ", ".join(origins)

    def omit(self, origin: str, reason: str) -> None:
        self.omitted.setdefault(reason, []).append(one_line(origin))

    def count(self, key: str) -> int | None:
        """Takes a whole number out; lists any other value as left out."""
        value = self.values.pop(key, None)
        if type(value) is int and value > 0:
            return value
        if value is not None:
            self.omit(self.origins[key], "must be a whole number of 1 or more")
        return None


def convert(source: str) -> Conversion:
    """Converts the configuration of another trainer.

    Args:
        source: The file; `FILE:NAME` for one of several configurations in a Python file.

    Raises:
        UserError: If it cannot be read, or belongs to no known trainer.
    """
    trainer, values = read_document(source)
    entries = settings_of(trainer, values, Path(source).parent)
    name = str(entries.values.get(_NAME, ""))
    if "data.files" in entries.values and (is_file(Path(name, "tokenizer.json")) or "/" in name):
        entries.add({"data.tokenizer": name}, "the model's")
    if _NAME in entries.values:
        entries.omitted.pop(tables.NO_PRESET, None)
    hints = packaged_table(__package__, "trainers.yaml")["blanks"]
    blanks = {key: hint for key, hint in hints.items() if key not in entries.values}
    omitted = tuple(
        one_line(f"{reason}: {', '.join(dict.fromkeys(keys))}")
        for reason, keys in entries.omitted.items()
    )
    file = one_line(Path(source).name)
    origins: dict[str, Any] = {key: (None, hint) for key, hint in blanks.items()}
    origins |= {key: (value, entries.origins[key]) for key, value in entries.values.items()}
    lines = [f"# A Plimsoll sweep, from a configuration of {trainer.name} ({file}).\n"]
    lines += [*origin_lines(origins), "", *["# Left out:"] * bool(omitted)]
    for line in omitted:
        lines += textwrap.wrap(line, _WIDTH, initial_indent="# - ", subsequent_indent="#   ")
    return Conversion(
        trainer=trainer.name,
        text="\n".join(lines) + "\n",
        blanks=tuple(f"{key}: {hint}" for key, hint in blanks.items()),
        omitted=omitted,
    )


def settings_of(trainer: tables.Trainer, values: Mapping[str, Any], folder: Path) -> Settings:
    """Returns what a trainer's values mean, by dotted key; `folder` has files that they name."""
    entries = Settings()
    _read(trainer, _joined(values, folder, entries), entries)
    _join_batches(entries)
    _join_betas(entries)
    _join_warmup(entries)
    for key, reason in [*_refused(entries.values)]:
        del entries.values[key]
        entries.omit(entries.origins[key], reason)
        entries.impossible.append(f"{entries.origins[key]}: {reason}")
    return entries


def _joined(values: Mapping[str, Any], folder: Path, entries: Settings) -> dict[str, Any]:
    """Joins values that lie in two places: DeepSpeed's file, and forms of torchtitan's keys."""
    joined = dict(values)
    for name in (values[key] for key in _LINKS if isinstance(values.get(key), str)):
        found = [path for path in (Path(name), folder / name) if is_file(path)]
        if not found:
            entries.omit(name, "no such file here: write its settings under baseline")
            continue
        _, linked = read_document(str(found[0]))
        joined |= {f"deepspeed.{key}": value for key, value in linked.items()}
    if {"model.name", "model.flavor"} <= joined.keys():
        joined["model"] = f"{joined.pop('model.name')}-{joined.pop('model.flavor')}"
    if "activation_checkpoint" in joined:
        joined["activation_checkpoint.mode"] = joined.pop("activation_checkpoint")
    return joined


def _read(trainer: tables.Trainer, values: Mapping[str, Any], entries: Settings) -> None:
    """Fills the entries: what the file says, then the trainer's defaults."""
    usual = Settings()
    usual.add(trainer.always, "")
    order = {key: number for number, key in enumerate(trainer.takes)}
    for into, source in ((usual, trainer.defaults), (entries, values)):
        for key in sorted(source, key=lambda key: order.get(key, len(order))):
            taken = tables.take(trainer, key, source[key])
            if isinstance(taken, str):
                into.omit(key, taken)
                if taken is tables.NO_VALUE:
                    into.impossible.append(f"{key} is {source[key]!r}: {taken}")
            elif not taken:
                into.omit(key, "of no effect")
            elif into is entries or key not in values:
                into.add(taken, key)
                for name in tables.parts_left_out(source[key]):
                    into.omit(f"{key}[].{name}", tables.reason_against(name))
    if any("bf16" in key for key in entries.omitted.get(tables.AUTO, ())):
        usual.values.pop("train.precision")
    silent = {key: value for key, value in usual.values.items() if key not in entries.values}
    entries.add(silent, f"default of {trainer.name}")


def _join_batches(entries: Settings) -> None:
    """Fills the global batch, the ranks and the baseline's micro-batch from their parts."""
    origins = dict.fromkeys(_PARTS, "") | entries.origins
    micro, accumulation, total, shards, part, ranks = map(entries.count, _PARTS)
    degrees = (entries.values.get(f"baseline.{name}") for name in _DEGREES)
    tensor, pipeline, replicas = (n if type(n) is int and n > 0 else 1 for n in degrees)
    data = ranks // (tensor * pipeline) if ranks else shards * replicas if shards else None
    per_rank = (micro or 0) * (accumulation or 1)
    if total and accumulation and per_rank and not data and total % per_rank == 0:
        data = total // per_rank
    if total:
        entries.add({_BATCH: total}, origins["_global_batch"])
    elif micro:
        parts = f"{micro} x {accumulation or 1} accumulated x {data or 1} data ranks"
        silent = "" if data else ": the file names no ranks"
        entries.add({_BATCH: per_rank * (data or 1)}, f"{parts}{silent}")
    if accumulation:
        entries.omit(origins["_accumulation"], "follows from train.global_batch and the plan")
    if micro:  # torchtitan splits the batch of a rank for a pipeline
        size = part if part and pipeline > 1 else micro
        named = (
            origins[key] for key in ("_micro_batch", "_part") if size == part or key != "_part"
        )
        entries.add({"baseline.micro_batch": size}, ", ".join(dict.fromkeys(named)))
    if ranks or data:
        origin = origins[_RANKS] or origins["_shards"] or origins["_global_batch"]
        entries.values[_RANKS] = ranks or (data or 1) * tensor * pipeline
        entries.origins[_RANKS] = origin


def _join_betas(entries: Settings) -> None:
    betas = [entries.values.pop(key, default) for key, default in _BETAS.items()]
    if origins := [entries.origins[key] for key in _BETAS if key in entries.origins]:
        entries.add({"train.betas": betas}, ", ".join(origins))


def _join_warmup(entries: Settings) -> None:
    ratio, steps = (entries.values.get(key) for key in (_RATIO, "train.total_steps"))
    if entries.values.pop(_RATIO, None) is None:
        return
    if "train.warmup_steps" in entries.values:
        entries.omit(entries.origins[_RATIO], "the steps of the warm-up are given too")
    elif type(steps) is int and isinstance(ratio, int | float) and 0 <= ratio <= 1:
        entries.add({"train.warmup_steps": math.ceil(ratio * steps)}, entries.origins[_RATIO])
    else:
        entries.omit(entries.origins[_RATIO], "a share of steps whose number the file does not say")


def _refused(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the keys whose values a specification cannot have, with the reason."""
    faults: tuple[Fault, ...] = ()
    try:
        validated(tree_of({_NAME: "gpt2", _BATCH: 1} | dict(values)), source="")
    except SpecError as error:
        faults = error.faults
    for key in values:
        section, _, knob = key.partition(".")
        problem = knob_problem(knob, values[key]) if section == "baseline" else None
        about = [fault for fault in faults if re.match(rf"{re.escape(key)}(?![\w-])", fault.path)]
        if problem or about:
            yield key, problem or str(about[0])
