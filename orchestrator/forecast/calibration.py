"""What measurements of a study teach a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.forecast.request import TraceVariants
from orchestrator.workspace import NamedStudy
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey, plan_features, variants_of
from search_spaces.costs.workload import work_of
from search_spaces.errors import StudyError
from search_spaces.facts import ModelFacts
from search_spaces.hardware import Device, find_device
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, Record
from workers.tracing.trace import trace


class Footprints:
    """The variants of one model that were asked for so far, in one footprint."""

    def __init__(self, spec: SweepSpec, device: str) -> None:
        """Nothing is traced yet.

        Args:
            spec: Whose model and training step.
            device: "cpu" or "cuda": which kernels the step uses.
        """
        self._spec = spec
        self._device = device
        self._wanted: dict[VariantKey, None] = {}
        self._footprint: Footprint | None = None

    def __call__(self, wanted: tuple[VariantKey, ...]) -> Footprint:
        """A footprint with at least these variants.

        Raises:
            UserError: If the model cannot be traced; names the operator.
        """
        if self._footprint is None or not self._wanted.keys() >= set(wanted):
            self._wanted |= dict.fromkeys(wanted)
            self._footprint = trace(self._spec, tuple(self._wanted), device=self._device)
        return self._footprint


def calibrated(
    belief: Calibration,
    records: Sequence[Record],
    *,
    model: ModelFacts,
    device: Device,
    trace: TraceVariants,
) -> Calibration:
    """The belief after the measured trials of a study; the others say nothing here.

    Args:
        belief: What was believed before.
        records: Of one study.
        model: The study's model.
        device: What it ran on.
        trace: Gives footprints of the study's model.
    """
    measured = [
        (record.plan, record.outcome) for record in records if isinstance(record.outcome, Measured)
    ]
    if not measured:
        return belief
    table = PlanTable.of(plan for plan, _ in measured)
    footprint = trace(variants_of(table))
    work = work_of(footprint, device, plan_features(table, model, footprint))
    return belief.learned(
        work,
        np.array([outcome.step_seconds.value for _, outcome in measured]),
        np.array([float(outcome.memory.peak_bytes) for _, outcome in measured]),
    )


def calibrated_by_study(
    belief: Calibration, spec: SweepSpec, records: Sequence[Record], device: Device
) -> Calibration:
    """The belief after a study's trials on a device; its model is described and traced.

    Raises:
        ModelError: If the model cannot be found or traced.
    """
    from workers.models.load import describe

    kind = "cpu" if device.link_kind == "memory" else "cuda"
    return calibrated(
        belief,
        records,
        model=describe(spec.model, spec.train),
        device=device,
        trace=Footprints(spec, kind),
    )


def study_device(spec: SweepSpec, records: Sequence[Record]) -> Device:
    """What a study ran on.

    Raises:
        DeviceError: If nobody knows the device.
        StudyError: If no trial says what it ran on.
    """
    told = next((record.fingerprint for record in records if record.fingerprint), None)
    if told is None:
        raise StudyError("no trial of the study says what it ran on")
    found = find_device("cpu" if told.device == "cpu" else told.device_name)
    per_node = spec.cluster.gpus_per_node
    return replace(found, node_devices=per_node) if per_node else found


def calibrated_for_sweep(
    belief: Calibration, study: NamedStudy, tuned: SweepSpec, tuned_name: str
) -> Calibration:
    """The belief after the measured trials of a study, which may be of another model.

    Args:
        belief: What is believed before.
        study: Whose trials count.
        tuned: The specification of the study that forecasts are wanted for. If both are one,
            nothing is learned here: a sweep learns from its own records by itself.
        tuned_name: That study's name.

    Raises:
        UserError: If there is no such study, it ran on a device that nobody knows, or its model
            cannot be found or traced.
    """
    from orchestrator.study.reader import load_records  # imports Optuna
    from orchestrator.study.storage import storage_url

    spec, name = study.spec, study.name
    if (name, storage_url(spec, name)) == (tuned_name, storage_url(tuned, tuned_name)):
        return belief
    records = load_records(spec, name)
    return calibrated_by_study(belief, spec, records, study_device(spec, records))
