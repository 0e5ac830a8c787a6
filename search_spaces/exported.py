"""A folder that a plan was exported to: what every format writes beside its own files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import UserError
from search_spaces.estimate import Estimate
from search_spaces.plan import Plan

EXPORTED_FILE, SPEC_FILE = "plimsoll.json", "spec.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The plan, the command that starts it, and what its measurement promises.

    `losses` are of the optimizer steps after the first, which takes the longest samples; those
    of the same steps are to be no further off than `loss_tolerance` of the largest. `local` tells
    whether the command starts all ranks on the machine where it is said. `files` are those of the
    format with the SHA-256 of their bytes, so that it can be told which of them their user has
    changed since. `unsaid` is what the format leaves to its user.
    """

    format: str
    study: str
    trial: int
    proven: bool
    command: str
    environment: tuple[tuple[str, str], ...]
    device: str  # "cpu" or "cuda"
    plan: Plan
    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: int
    losses: tuple[float, ...]
    loss_tolerance: float
    blocks: int
    recomputed_blocks: int
    local: bool
    files: tuple[tuple[str, str], ...]
    unsaid: tuple[str, ...]

    def to_json(self) -> str:
        """What `read` reads again, for a person to look at as well."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def read(cls, folder: Path) -> Exported:
        """What `plimsoll export` has written into a folder.

        Raises:
            UserError: If it has not, or somebody has changed it.
        """
        file = folder / EXPORTED_FILE
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise UserError(
                f"{file} is not what plimsoll export wrote: {where}: {first['msg']}"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a name that no codec takes
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{file} cannot be read ({reason}): name a folder that plimsoll export wrote"
            ) from None


_ADAPTER: TypeAdapter[Exported] = TypeAdapter(Exported)
