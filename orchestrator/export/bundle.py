"""Exported folders: files, the start command and the expected measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shlex import quote

from orchestrator.export.inputs import Inputs, collect_inputs
from orchestrator.export.scripts import HEAD, SCRIPT
from orchestrator.export.source import ExportSource
from orchestrator.report.format import gib, plural
from orchestrator.report.labels import lossy_words, plan_words
from orchestrator.report.terminal import without_controls
from search_spaces.errors import UserError, written
from search_spaces.safety.files import make_folder, write_durably
from search_spaces.settings.blocks import render_blocks
from search_spaces.settings.export_manifest import (
    CODE,
    EXPORTED_FILE,
    INPUTS_VARIABLE,
    SPEC_FILE,
    ExportManifest,
)
from search_spaces.settings.render import Environment
from search_spaces.specification.load import spec_to_yaml

README = "README.md"
_MARKUP = frozenset("\\`*_[]<>#!|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A plan in one format: files by name, and the command that starts them.

    Attributes:
        environment: Variables that each process needs before it starts.
        caveats: Sentences on what the format leaves to its user.
        local: True if the command starts ranks on this machine, and not on a cluster or in a
            program that may be missing.
        carries: True if the folder has copies of small inputs. Otherwise all inputs are
            referenced by absolute path.
    """

    format: str
    files: Mapping[str, str]
    command: str
    environment: Environment = ()
    caveats: tuple[str, ...] = ()
    local: bool = True
    carries: bool = True

    def command_from(self, folder: Path) -> str:
        """Returns the command with its environment, for a shell outside the folder."""
        names = {*self.files, "."}
        variables = [f"{name}={quote(value)}" for name, value in self.environment]
        if SCRIPT not in self.files:  # the file of a trainer names others by relative paths
            return " ".join([f"cd {quote(str(folder))} &&", *variables, self.command])
        words = [
            quote(str(folder / word)) if word in names else word for word in self.command.split()
        ]
        return " ".join([*variables, *words])


def write_bundle(bundle: Bundle, source: ExportSource, folder: Path) -> None:
    """Writes the folder, which must be new or empty.

    Raises:
        UserError: If the folder has files, or cannot be written.
    """
    with written(folder):
        make_folder(folder, below=folder.parent)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another folder with --out")
        inputs = collect_inputs(source.spec, carry=bundle.carries)
        for name, text in files_of(bundle, source, inputs).items():
            write_durably(folder / name, text, below=folder.parent)
        for name, origin in inputs.files.items():
            write_durably(folder / name, origin.read_bytes(), below=folder.parent)


def files_of(bundle: Bundle, source: ExportSource, inputs: Inputs) -> dict[str, str]:
    """Returns all files of the folder except copies of inputs: texts by name."""
    return {
        **bundle.files,
        README: readme(bundle, source, inputs),
        EXPORTED_FILE: manifest_of(bundle, source, inputs).to_json(),
        SPEC_FILE: spec_to_yaml(inputs.spec),
    }


def manifest_of(bundle: Bundle, source: ExportSource, inputs: Inputs) -> ExportManifest:
    """Returns the manifest that `plimsoll verify` and the unchanged script read."""
    measured = source.measured
    return ExportManifest(
        format=bundle.format,
        study=source.study,
        trial=source.record.number,
        validated=source.validation is not None,
        command=bundle.command,
        environment=tuple(bundle.environment),
        device=source.device,
        plan=source.plan,
        train=source.spec.train,
        samples_per_second=measured.samples_per_second,
        step_seconds=measured.step_seconds,
        peak_bytes=measured.memory.peak_bytes,
        base=source.model.base,
        losses=source.outcome.losses,
        loss_tolerance=source.loss_tolerance,
        blocks=source.model.blocks,
        local=bundle.local and source.hosts == 1,
        recomputed_blocks=len(render_blocks(source.plan, source.model.blocks).recomputed),
        files=(
            *((name, sha256(text.encode()).hexdigest()) for name, text in bundle.files.items()),
            *((name, sha256(file.read_bytes()).hexdigest()) for name, file in inputs.files.items()),
        ),
        caveats=bundle.caveats,
        inputs=inputs.inputs,
        rule=source.model.target_rule,
        unused_weights=source.model.has_unused_weights,
    )


def readme(bundle: Bundle, source: ExportSource, inputs: Inputs) -> str:
    """Returns the README of the folder, for a reader who knows nothing of the sweep."""
    measured, plan = source.measured, source.plan
    rate = measured.samples_per_second
    how = "validated in fresh workers" if source.validation else "measured in one trial"
    on_hosts = f", on each host (`{HEAD}` is the name of one of them)"
    on_hosts = on_hosts if HEAD in bundle.command else ""
    lines = [
        f"# {_name(source.spec.model.title)}: trial {source.record.number} of study"
        f" {_name(source.study)}",
        "",
        f"{plan_words(plan)}, on {_ranks(source)}. Start it in this folder{on_hosts}:",
        "",
        *(f"    export {name}={value}" for name, value in bundle.environment),
        f"    {bundle.command}",
        "",
        f"Expected, as {how}: {rate.value:.4g} samples/s ({rate.low:.4g} to {rate.high:.4g}),"
        f" {measured.step_seconds.value:.4g} s per step of {plan.global_batch} samples, and a peak"
        f" of {gib(measured.memory.peak_bytes)} GiB on the fullest rank.",
    ]
    if lossy := lossy_words(plan, source.spec):
        train = source.spec.train
        lines += ["", f"Lossy: it trains with {lossy}, but the specification asks for"]
        lines[-1] += f" {train.optimizer} in {train.precision}. Compare its losses to that."
    if sentences := list(_input_sentences(source, inputs)):
        lines += ["", "The script reads these inputs until you add your own model and data:", ""]
        lines += [f"- {sentence}" for sentence in sentences]
    if bundle.caveats:
        lines += ["", "This format leaves to you:", ""]
        lines += [f"- {sentence}" for sentence in bundle.caveats]
    return "".join(f"{without_controls(' '.join(line.splitlines()))}\n" for line in lines)


def _name(text: str) -> str:
    return "".join(f"\\{one}" if one in _MARKUP else one for one in text)


def _code(path: str) -> str:
    return path.replace("`", "'")


def _input_sentences(source: ExportSource, inputs: Inputs) -> Iterator[str]:
    for each in inputs.inputs:
        if each.carried:
            yield f"`{_code(each.path)}`, a copy of `{_code(each.source)}`."
        else:
            yield (
                f"`{_code(each.source)}`, which is not in this folder. On a machine that has it"
                f" elsewhere, set {INPUTS_VARIABLE} to a folder that contains `{_code(each.name)}`."
            )
    if any(each.name == CODE for each in inputs.inputs):
        module = source.spec.model.name.partition(":")[0]
        yield (
            f"Everything that `{module}` imports or opens outside its own modules; it is not"
            " copied."
        )


def _ranks(source: ExportSource) -> str:
    words = plural(source.plan.world_size, "rank")
    return words if source.hosts == 1 else f"{words} across {source.hosts} hosts"
