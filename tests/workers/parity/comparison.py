"""Comparisons of plans with the plain loop, on real ranks."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from bitsandbytes.optim import AdamW8bit

from orchestrator.report.reasons import outcome_sentence
from search_spaces.errors import DataError, ModelError, UserError
from search_spaces.facts import ClusterFacts
from search_spaces.knobs.registry import lossy_knobs
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.orchestrator.export.folders import taken_of
from tests.workers.launch import Groups
from tests.workers.parity.architectures import clipped, model_folder, spec_of, with_micro_batch
from tests.workers.parity.exported import first_steps
from tests.workers.parity.layouts import EXPORTS, Knobs, layouts_of, plan_of
from tests.workers.parity.plain_loop import (
    FIRST_STEPS,
    FUNCTION_STEPS,
    Reference,
    reference,
    reference_losses,
)
from tests.workers.parity.ranks import steps, tensors, trial
from workers.models.function_probe import with_function_findings
from workers.prepare import prepare
from workers.probe.doctor import lacks

Ending = Literal["same", "labelled", "differs", "refused", "failed", "not built"]
Quantity = Literal["change", "change in fp16", "losses", "losses in 8 bits"]
# of the largest change of a weight: fp32 keeps 7 digits of weights of which the step takes 3
TOLERANCES: Mapping[Quantity, float] = {
    "change": 2e-4,
    "change in fp16": 5e-2,  # 3 digits; FSDP2 rounds more than autocast does
    "losses": 1e-4,  # relative, over the steps of AdamW, which carries differences on
    "losses in 8 bits": 1e-2,  # bitsandbytes keeps 32 for parts of fewer than 4096 numbers
}
_CALL_SECONDS = 1200.0
_DEPENDS = "set train.micro_batch"
_CANNOT_BE_BUILT = (ModelError, DataError, KeyError, ValueError, TypeError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Comparison of a plan with the plain loop.

    Attributes:
        task: Task of the model.
        model: Its `model_type`.
        layout: Name of the plan in `layouts`.
        ending: "same", "labelled" if it differs and the product says so, "differs", "refused",
            "failed", or "not built" for the whole model.
        quantity: The change of weights by steps of SGD; losses where an engine has its own
            optimizer.
        apart: Largest difference as a share of the largest change, or of the loss; None if it was
            not compared.
        detail: The refusal's or the failure's sentence, or the label.
    """

    task: str
    model: str
    layout: str
    ending: Ending
    quantity: Quantity = "change"
    apart: float | None = None
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        """True if a plan that no rule refuses does not train the same."""
        return self.ending in ("differs", "failed")


class Expected:
    """Results of the plain loop; losses are computed when a plan is first compared by them."""

    def __init__(self, spec: SweepSpec) -> None:
        """Takes the two steps, whose gradients decide what is clipped."""
        self.facts = with_function_findings(prepare(spec), spec.model, spec.train)
        self.task = self.facts.task or "function"
        self.steps = reference(spec, FIRST_STEPS if self.task != "function" else FUNCTION_STEPS)
        self.spec = clipped(spec, self.steps.clip)

    @cached_property
    def steps_in_fp16(self) -> Reference:
        """The same two steps with activations in fp16."""
        return reference(self.spec, in_fp16=True)

    @cached_property
    def losses(self) -> list[float]:
        """Losses under AdamW."""
        return reference_losses(self.spec)

    @cached_property
    def losses_of_eight_bit(self) -> list[float]:
        """Losses under bitsandbytes' AdamW of whole weights."""
        train = self.spec.train
        rates = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
        return reference_losses(self.spec, lambda weights: AdamW8bit(weights, **rates))


class Parity:
    """Comparisons of plans with the plain loop, on groups of ranks that stay."""

    def __init__(self, groups: Groups | None = None) -> None:
        """Starts no ranks yet; without groups given, its own have no memory limit."""
        self._groups = groups or Groups(spec_of("causal-lm", Path("gpt2")))

    def stop(self) -> None:
        """Stops all ranks."""
        self._groups.stop()

    def of_model(
        self, task: str, model: str, layouts: Mapping[str, Knobs] | None = None
    ) -> Iterator[Compared]:
        """Yields the comparison of each layout; by default of all that the model runs."""
        chosen = layouts_of(task, model) if layouts is None else layouts
        with tempfile.TemporaryDirectory(prefix="plimsoll-parity-") as folder:
            try:
                expected = Expected(spec_of(task, model_folder(model, Path(folder))))
            except _CANNOT_BE_BUILT as error:
                sentence = f"{type(error).__name__}: {error}".splitlines()[0]
                row = Compared(task=task, model=model, layout="", ending="not built")
                yield replace(row, detail=sentence)
                return
            yield from self.of_layouts(model, expected, chosen)

    def of_function(
        self, name: str, spec: SweepSpec, layouts: Mapping[str, Knobs]
    ) -> Iterator[Compared]:
        """Yields the comparison of each layout with a function.

        Where its loss depends on the micro-batch, a second time with one that the user says.
        """
        row = Compared(task="function", model=name, layout="", ending="refused")
        try:
            expected = Expected(spec)
        except UserError as error:
            yield replace(row, detail=str(error))
            return
        rows = list(self.of_layouts(name, expected, layouts))
        yield from rows
        depends = all(_DEPENDS in row.detail for row in rows)
        if depends and spec.train.micro_batch is None:
            yield from self.of_function(
                f"{name}, micro-batch said", with_micro_batch(spec), layouts
            )

    def of_layouts(
        self, model: str, expected: Expected, layouts: Mapping[str, Knobs]
    ) -> Iterator[Compared]:
        """Yields the comparison of each layout with what is expected of a model."""
        task = expected.task
        for layout, knobs in layouts.items():
            row = Compared(task=task, model=model, layout=layout, ending="refused")
            yield self._compare(plan_of(knobs, expected.facts), expected, row)

    def _compare(self, plan: Plan, expected: Expected, row: Compared) -> Compared:
        context = RuleContext(
            spec=expected.spec, model=expected.facts, cluster=_cluster(plan.world_size)
        )
        if (refused := refusal(plan, context)) is not None:
            return replace(row, ending="refused", detail=f"{refused.rule}: {refused.detail}")
        row = self._run(plan, expected, row)
        if row.ending == "differs" and (label := _label(plan, expected)):
            return replace(row, ending="labelled", detail=label)
        return row

    def _run(self, plan: Plan, expected: Expected, row: Compared) -> Compared:
        step = expected.facts.step
        request = TrialRequest(number=0, plan=plan, spec=expected.spec, step=step)
        try:
            if row.layout in EXPORTS:
                return self._by_script(request, expected.steps, row)
            if plan.optimizer == "adamw_8bit":
                row = replace(row, quantity="losses in 8 bits")
                return self._by_losses(request, expected.losses_of_eight_bit, row)
            if plan.engine == "deepspeed" and plan.offload_optimizer != "none":
                row = replace(row, quantity="losses")
                return self._by_losses(request, expected.losses, row)
            if plan.precision == "fp16":
                row = replace(row, quantity="change in fp16")
                return self._by_changes(request, expected.steps_in_fp16, row)
            return self._by_changes(request, expected.steps, row)
        except AssertionError as error:  # a rank is gone, or weights are missing
            return replace(row, ending="failed", detail=str(error).strip().splitlines()[-1])

    def _by_changes(self, request: TrialRequest, expected: Reference, row: Compared) -> Compared:
        group = self._groups.of(request.plan.world_size)
        given = (request, expected.rate, expected.steps)
        moved = group.call(steps, *given, seconds=_CALL_SECONDS)
        failures = [each for each in moved if isinstance(each, str)]
        if failures:
            group.stop()  # other ranks may still wait
            # a rank that waited for the one that failed says so
            first = next((each for each in failures if "gloo" not in each), failures[0])
            return replace(row, ending="failed", detail=first)
        losses = expected.loss_difference([losses for losses, _ in moved])
        return _judged(row, max(losses, expected.largest_difference(tensors(moved))))

    def _by_script(self, request: TrialRequest, expected: Reference, row: Compared) -> Compared:
        source = taken_of(request.plan, spec=request.spec)
        form, _ = EXPORTS[row.layout]
        with tempfile.TemporaryDirectory(prefix="plimsoll-export-") as folder:
            try:
                moved = first_steps(source, form, expected.rate, Path(folder))
            except UserError as error:
                return replace(row, ending="refused", detail=str(error))
        return _judged(row, expected.largest_difference(moved.changes))

    def _by_losses(self, request: TrialRequest, losses: Sequence[float], row: Compared) -> Compared:
        group = self._groups.of(request.plan.world_size)
        outcome = group.call(trial, request, seconds=_CALL_SECONDS)[0]
        if not isinstance(outcome, Measured):
            return replace(row, ending="failed", detail=outcome_sentence(outcome))
        pairs = zip(outcome.losses, losses, strict=True)
        return _judged(row, max(abs(mine - theirs) / abs(theirs) for mine, theirs in pairs))


def _label(plan: Plan, expected: Expected) -> str:
    """Returns what the product says of a plan that may differ; empty if it says nothing."""
    if lossy := lossy_knobs(plan, expected.spec):
        return f"lossy: {', '.join(lossy)}"
    draws = expected.facts.step is not None and expected.facts.step.draws
    return "draws random numbers, which plans draw differently" if draws else ""


def _judged(row: Compared, apart: float) -> Compared:
    ending: Ending = "same" if apart < TOLERANCES[row.quantity] else "differs"
    return replace(row, ending=ending, apart=apart)


def _cluster(ranks: int) -> ClusterFacts:
    return ClusterFacts(device="cpu", slots=ranks, memory_limit_bytes=None, lacks=lacks("cpu"))
