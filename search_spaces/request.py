"""What a worker is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from search_spaces.estimate import Estimate
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial: train `plan` on the spec's model and data, and measure it.

    `collective_seconds` bounds how long a rank waits for the others in a collective. `rival` is
    what a step of the best plan so far takes, in seconds: a trial that is slower beyond doubt ends
    early, one that is as fast is measured more exactly. None: there is none to beat. A proof is a
    trial that does more, as `spec.proof` says.
    """

    number: int
    plan: Plan
    spec: SweepSpec
    collective_seconds: float = 60.0
    rival: Estimate | None = None
    proof: bool = False

    @property
    def snapshot(self) -> str | None:
        """How the file begins that a GPU's rank leaves if it runs out of memory; None: it does not.

        Only where the specification names the study, which one that a person runs may not.
        """
        name = self.spec.study.name
        return None if name is None else snapshot_stem(self.spec, name, self.number, self.proof)


def snapshot_stem(spec: SweepSpec, study: str, number: int, proof: bool = False) -> str:
    """How the file begins in which a trial that ran out of a GPU's memory leaves its snapshot."""
    kind = "proof" if proof else "trial"
    return str(Path(spec.study.folder, study, "snapshots", f"{kind}-{number}"))
