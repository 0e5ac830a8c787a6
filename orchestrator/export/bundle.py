"""A folder that somebody can start: files, the command, the numbers to expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shlex import quote
from shutil import copyfile

from orchestrator.core.validation import loss_tolerance
from orchestrator.export.inputs import Inputs, collect_inputs
from orchestrator.export.scripts import HEAD
from orchestrator.export.source import ExportSource
from orchestrator.report.format import gib
from orchestrator.report.labels import lossy_words, plan_words
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import (
    CODE,
    EXPORTED_FILE,
    INPUTS_VARIABLE,
    SPEC_FILE,
    ExportManifest,
)
from search_spaces.settings.render import Environment, render_checkpoint
from search_spaces.spec.load import spec_to_yaml

README = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a format makes of a plan: files by name, and the command that starts it.

    `environment` has to stand in each process before it starts. `unsaid` are sentences: what the
    format leaves to its user. `local` tells whether the command starts ranks on this machine, and
    not on a cluster or in a program that is not at hand. `carries` tells whether the folder holds
    copies of small inputs; else all are referenced by their absolute paths.
    """

    format: str
    files: Mapping[str, str]
    command: str
    environment: Environment = ()
    unsaid: tuple[str, ...] = ()
    local: bool = True
    carries: bool = True

    def command_from(self, folder: Path) -> str:
        """The command with its environment, as a shell takes it outside of the folder."""
        names = {*self.files, "."}
        variables = [f"{name}={quote(value)}" for name, value in self.environment]
        words = [
            quote(str(folder / word)) if word in names else word for word in self.command.split()
        ]
        return " ".join([*variables, *words])


def write_bundle(bundle: Bundle, taken: ExportSource, folder: Path) -> None:
    """Writes the folder, which must be new or empty.

    Raises:
        UserError: If it is not, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: name another folder by --out")
        inputs = collect_inputs(taken.spec, carry=bundle.carries)
        for name, text in files_of(bundle, taken, inputs).items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, source in inputs.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(source, folder / name)
    except (OSError, ValueError) as error:  # ValueError: a name that no codec takes
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder} cannot be written: {reason}") from None


def files_of(bundle: Bundle, taken: ExportSource, inputs: Inputs) -> dict[str, str]:
    """All that the folder holds beside copies of inputs, texts by name."""
    return {
        **bundle.files,
        README: readme(bundle, taken, inputs),
        EXPORTED_FILE: exported_of(bundle, taken, inputs).to_json(),
        SPEC_FILE: spec_to_yaml(inputs.spec),
    }


def exported_of(bundle: Bundle, taken: ExportSource, inputs: Inputs) -> ExportManifest:
    """What is read again, by `plimsoll verify` and by the script for the model it starts with."""
    told = taken.told
    return ExportManifest(
        format=bundle.format,
        study=taken.study,
        trial=taken.record.number,
        validated=taken.validation is not None,
        command=bundle.command,
        environment=tuple(bundle.environment),
        device=taken.device,
        plan=taken.plan,
        samples_per_second=told.samples_per_second,
        step_seconds=told.step_seconds,
        peak_bytes=told.memory.peak_bytes,
        losses=taken.outcome.losses,
        loss_tolerance=loss_tolerance(taken.plan, told, taken.spec),
        blocks=taken.model.blocks,
        local=bundle.local and taken.hosts == 1,
        recomputed_blocks=len(render_checkpoint(taken.plan, taken.model.blocks).blocks),
        files=(
            *((name, sha256(text.encode()).hexdigest()) for name, text in bundle.files.items()),
            *((name, sha256(file.read_bytes()).hexdigest()) for name, file in inputs.files.items()),
        ),
        unsaid=bundle.unsaid,
        inputs=inputs.inputs,
    )


def readme(bundle: Bundle, taken: ExportSource, inputs: Inputs) -> str:
    """What a colleague has to know who was not there."""
    told, plan = taken.told, taken.plan
    rate = told.samples_per_second
    how = "validated in workers of its own" if taken.validation else "measured in one trial"
    lines = [
        f"# {taken.spec.model.name}: trial {taken.record.number} of study {taken.study}",
        "",
        f"{plan_words(plan)}, on {_where(taken)}. Start it in this folder{_everywhere(bundle)}:",
        "",
        *(f"    export {name}={value}" for name, value in bundle.environment),
        f"    {bundle.command}",
        "",
        f"Expect, {how}: {rate.value:.4g} samples/s ({rate.low:.4g} to {rate.high:.4g}),"
        f" {told.step_seconds.value:.4g} s a step of {plan.global_batch} samples, a peak of"
        f" {gib(told.memory.peak_bytes)} GiB on the fullest rank.",
    ]
    if lossy := lossy_words(plan, taken.spec):
        train = taken.spec.train
        lines += ["", f"Lossy: it trains with {lossy}, where the specification asks for"]
        lines[-1] += f" {train.optimizer} in {train.precision}: hold its losses against that."
    if sentences := list(_input_sentences(taken, inputs)):
        lines += ["", "What the script reads until it has your own model and data:", ""]
        lines += [f"- {sentence}" for sentence in sentences]
    if bundle.unsaid:
        lines += ["", "What this format leaves to you:", ""]
        lines += [f"- {sentence}" for sentence in bundle.unsaid]
    return "\n".join(lines) + "\n"


def _input_sentences(taken: ExportSource, inputs: Inputs) -> Iterator[str]:
    for each in inputs.inputs:
        if each.carried:
            yield f"`{each.path}`, a copy of `{each.source}`."
        else:
            yield (
                f"`{each.source}`, which is not in this folder. On a machine that has it elsewhere"
                f" set {INPUTS_VARIABLE} to a folder that holds `{each.name}`."
            )
    if any(each.name == CODE for each in inputs.inputs):
        module = taken.spec.model.name.partition(":")[0]
        yield f"Whatever `{module}` imports or opens beyond its own modules: that is not copied."


def _where(taken: ExportSource) -> str:
    ranks = taken.plan.world_size
    said = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return said if taken.hosts == 1 else f"{said} of {taken.hosts} hosts"


def _everywhere(bundle: Bundle) -> str:
    if HEAD not in bundle.command:
        return ""
    return f", on each host (`{HEAD}`: the name of one of them)"
