"""Effect of a plan that a warm group ran on the next trial: its speed, losses and memory.

    python -m benchmarks.engines_in_turn [--rounds 3] [--steps 16] [--out FILE]

Two warm groups of two workers, as a sweep has them. One runs each plan; the other, the control, a
reference plan (DDP) and nothing else. After each plan both run the reference in turn, some times
over, and the speeds of neighbours are compared: what else the machine does slows both. Nothing
leaks if the group that ran the plan is as fast as the control, its losses are the same to the last
digit, and its worker is no larger. The turn in which nothing runs between the two tells the
noise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.output import write
from orchestrator.cluster.worker_group import WorkerGroup
from orchestrator.core.failures import failure_decision
from orchestrator.core.placement import Processes
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, OutOfMemory, TrialRequest

RANKS = 2
DEADLINE_SECONDS = 600.0  # DeepSpeed's CPU Adam and torch.compile build once
MIB = 2**20
GLOBAL_BATCH, TOO_LARGE_BATCH = 32, 512
NOTHING = "nothing (noise)"
REPEATS = 5  # of the reference in both groups, after each plan


def spec_for(steps: int, *, global_batch: int = GLOBAL_BATCH, length: int = 64) -> SweepSpec:
    """A small model, and so many steps whatever the noise, so that losses can be compared."""
    return SweepSpec.model_validate(
        {
            "model": {
                "name": "llama-3.2-1b",
                "config": {
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_hidden_layers": 4,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "vocab_size": 512,
                },
            },
            "cluster": {"device": "cpu", "workers": RANKS, "memory_gib": 0.5},
            "train": {
                "global_batch": global_batch,
                "sequence_length": length,
                "precision": "fp32",
            },
            "space": {"engine": ["torch", "deepspeed"], "offload_optimizer": ["none", "cpu"]},
            "objective": {"max_steps": steps, "max_seconds": 120, "interval": 1e-9},
        }
    )


def plan(**knobs: Any) -> Plan:
    """The reference with other knobs; `accumulation` fills up the global batch."""
    full: dict[str, Any] = {
        "zero_stage": 0,
        "micro_batch": 4,
        "checkpoint_ratio": 0.0,
        "attention": "sdpa",
        "precision": "fp32",
        "batching": "padded",
        "data": RANKS,
    } | knobs
    full.setdefault("accumulation", GLOBAL_BATCH // full["micro_batch"] // full["data"])
    return Plan(**full)


REFERENCE = plan()
OUT_OF_MEMORY = plan(micro_batch=TOO_LARGE_BATCH // RANKS, accumulation=1)
PLANS: Mapping[str, Plan | None] = {
    NOTHING: None,
    "fsdp2, zero 2": plan(zero_stage=2),
    "fsdp2, zero 3": plan(zero_stage=3),
    "deepspeed, stage 0": plan(engine="deepspeed"),
    "deepspeed, stage 1": plan(engine="deepspeed", zero_stage=1),
    "deepspeed, stage 2": plan(engine="deepspeed", zero_stage=2),
    "deepspeed, stage 3": plan(engine="deepspeed", zero_stage=3),
    "deepspeed, stage 3, all offloaded": plan(
        engine="deepspeed", zero_stage=3, offload_optimizer="cpu", offload_parameters="cpu"
    ),
    "tensor 2": plan(tensor=2, data=1),
    "tensor 2, sequence split": plan(tensor=2, data=1, sequence_parallel=True),
    "pipeline 2, 1f1b": plan(pipeline=2, data=1),
    "pipeline 2, interleaved": plan(pipeline=2, data=1, pipeline_schedule="interleaved"),
    "selective recomputation": plan(checkpoint_ratio=1.0, checkpoint_mode="selective"),
    "bf16": plan(precision="bf16"),
    "out of memory": OUT_OF_MEMORY,
    "compile": plan(compile=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The reference after a plan, held against the control, and against the one before."""

    label: str
    ending: str  # of the plan
    speed_ratio: float  # samples per second over the control's, median of the pairs
    same_losses: bool
    residual_bytes: int  # what the plan left behind, as its trial says


class Bench:
    """A warm group, replaced where a sweep would replace it, and one beside it for control."""

    def __init__(self, steps: int) -> None:
        """Starts both groups; their first trials load what libraries load lazily."""
        self._spec = spec_for(steps)
        self._large = spec_for(steps, global_batch=TOO_LARGE_BATCH, length=256)
        self._control = self._start()
        self._group = self._start()
        self.compare()

    def compare(self) -> tuple[float, Measured]:
        """The group's speed over the control's, and the group's last outcome."""
        ratios = []
        for _ in range(REPEATS):
            ours = self._reference(self._group)
            ratios.append(speed(ours) / speed(self._reference(self._control)))
        return statistics.median(ratios), ours

    def turn(self, label: str, before: Measured) -> tuple[Turn, Measured]:
        """Runs a plan, and the reference after it."""
        which = PLANS[label]
        outcome = self._run(self._group, which) if which else before
        assert isinstance(outcome, Measured | OutOfMemory), (label, outcome)
        if failure_decision(outcome).replace:
            self._group.stop()
            self._group = self._start()
        ratio, after = self.compare()
        turn = Turn(
            label=label,
            ending=outcome.kind,
            speed_ratio=ratio,
            same_losses=after.losses == before.losses,
            residual_bytes=outcome.costs.residual_bytes if outcome.costs else 0,
        )
        return turn, after

    def stop(self) -> None:
        """Ends both groups."""
        self._group.stop()
        self._control.stop()

    def _start(self) -> WorkerGroup:
        processes = Processes.of(REFERENCE, "cpu")
        group = WorkerGroup(self._spec, processes, "cpu", str(Path.cwd()))
        self._reference(group)
        return group

    def _run(self, group: WorkerGroup, which: Plan) -> Outcome:
        spec = self._large if which == OUT_OF_MEMORY else self._spec
        return group.run(TrialRequest(number=0, plan=which, spec=spec), DEADLINE_SECONDS)

    def _reference(self, group: WorkerGroup) -> Measured:
        outcome = self._run(group, REFERENCE)
        assert isinstance(outcome, Measured), outcome
        return outcome


def speed(outcome: Measured) -> float:
    """Samples per second."""
    return outcome.samples_per_second.value


def summary(label: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Figures of one plan over all rounds."""
    ratios = [turn.speed_ratio for turn in turns]
    return {
        "plan": label,
        "ended": turns[0].ending,
        "reference_after_over_control": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "same_losses": all(turn.same_losses for turn in turns),
        "most_residual_mib": round(max(turn.residual_bytes for turn in turns) / MIB, 1),
    }


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """Runs every plan in each round."""
    import ray

    ray.init(
        num_cpus=2 * RANKS, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    bench = Bench(steps)
    first_ratio, first = bench.compare()
    before = first
    turns: dict[str, list[Turn]] = {label: [] for label in PLANS}
    for done in range(rounds):
        for label in PLANS:
            print(f"round {done + 1} of {rounds}: {label}", file=sys.stderr, flush=True)
            turn, before = bench.turn(label, before)
            turns[label].append(turn)
    bench.stop()
    ray.shutdown()
    return {
        "reference": f"DDP, micro-batch 4, {RANKS} ranks, {steps} steps",
        "first_samples_per_second": round(speed(first), 1),
        "first_over_control": round(first_ratio, 3),
        "rounds": rounds,
        "turns": [summary(label, found) for label, found in turns.items()],
        "same_losses_throughout": before.losses == first.losses,
    }


def main() -> None:
    """Prints the comparison as a table, and as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.rounds, options.steps)
    write(result, options.out)
    for turn in result["turns"]:
        losses = "same" if turn["same_losses"] else "OTHER"
        print(
            f"{turn['plan']:<34} speed after it {turn['reference_after_over_control']:.3f}"
            f" ({turn['lowest']:.3f} to {turn['highest']:.3f}), {losses} losses,"
            f" residual {turn['most_residual_mib']:.1f} MiB"
        )


if __name__ == "__main__":
    main()
