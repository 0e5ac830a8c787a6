"""Exported folders: files, the start command and the expected measurements."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shlex import quote

from orchestrator.export.inputs import Inputs, collect_inputs
from orchestrator.export.scripts import HEAD, SCRIPT, render_text
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
    text = render_text(
        "readme.md.jinja",
        bundle=bundle,
        source=source,
        inputs=inputs.inputs,
        rate=source.measured.samples_per_second,
        plan_words=plan_words(source.plan),
        ranks=plural(source.plan.world_size, "rank"),
        peak_gib=gib(source.measured.memory.peak_bytes),
        lossy=lossy_words(source.plan, source.spec),
        escaped=_escaped,
        head=HEAD,
        code=CODE,
        inputs_variable=INPUTS_VARIABLE,
    )
    return without_controls(text)


def _escaped(text: str) -> str:
    return "".join(f"\\{one}" if one in _MARKUP else one for one in text)
