"""Calibration of the cost model by the measured trials of a study."""

from collections.abc import Sequence

import numpy as np

from orchestrator.core.fingerprints import alike
from orchestrator.core.records import Record, last_fingerprint
from orchestrator.core.state import SweepState
from orchestrator.forecast.request import TraceVariants
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey, plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.errors import ModelError, StudyError
from search_spaces.facts import ModelFacts
from search_spaces.hardware.device import Device
from search_spaces.hardware.properties import find_or_estimate_device
from search_spaces.plan_table import PlanTable
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured
from workers.models.trust import runs_user_code
from workers.tracing.trace import cached_trace, trace_apart

MOST_RECORDS = 200  # that calibrate: more of them cost more time than they improve it


class Footprints:
    """Footprint of a model that grows by the variants that are requested.

    The code of a user's model runs in a process of its own, or not at all.
    """

    def __init__(self, spec: SweepSpec, device: str, *, run_code: bool) -> None:
        """Makes an empty footprint; nothing is traced before the first call.

        Args:
            spec: Specification with the model and training step.
            device: "cpu", "cuda" or "tpu", which decides the kernels of the step: a TPU's are
                those of a GPU.
            run_code: Whether the code of a user's model may run; otherwise such a model's
                footprint comes from the cache.
        """
        self._spec = spec
        self._device = "cuda" if device == "tpu" else device
        self._run_code = run_code
        self._variants: dict[VariantKey, None] = {}
        self._footprint: Footprint | None = None

    def __call__(self, wanted: tuple[VariantKey, ...]) -> Footprint:
        """Returns a footprint with at least these variants, tracing missing ones.

        Raises:
            UserError: If the model cannot be traced, or not without its code; names the operator.
        """
        if self._footprint is None or not self._variants.keys() >= set(wanted):
            self._variants |= dict.fromkeys(wanted)
            self._footprint = self._traced(tuple(self._variants))
        return self._footprint

    def _traced(self, wanted: tuple[VariantKey, ...]) -> Footprint:
        spec, device = self._spec, self._device
        if self._run_code or not runs_user_code(spec.model):
            return trace_apart(spec, wanted, device=device)
        footprint = cached_trace(spec, wanted, device=device)
        if footprint is None:
            raise ModelError(
                f"forecasts need a trace of {spec.model.title}, and this command does not run its"
                " code: plimsoll tune and plimsoll plan trace it"
            )
        return footprint


def calibrated(
    calibration: Calibration,
    records: Sequence[Record],
    *,
    model: ModelFacts,
    device: Device,
    trace: TraceVariants,
) -> Calibration:
    """Returns the calibration updated by the measured trials of one study of a model on a device.

    `trace` traces footprints of that model.
    """
    measured = [
        (record.plan, record.outcome) for record in records if isinstance(record.outcome, Measured)
    ]
    if not measured:
        return calibration
    table = PlanTable.of(plan for plan, _ in measured)
    footprint = trace(variants_of(table))
    work = workload_of(footprint, device, plan_features(table, model, footprint))
    return calibration.learned(
        work,
        np.array([outcome.step_seconds.value for _, outcome in measured]),
        np.array([float(outcome.memory.peak_bytes) for _, outcome in measured]),
    )


def calibrated_by_study(calibration: Calibration, state: SweepState, device: Device) -> Calibration:
    """Returns the calibration updated by a stored sweep on a device, whose model it traces.

    No code of a user's model runs.

    Raises:
        ModelError: If the model cannot be found or traced.
    """
    from orchestrator.study.reader import model_of

    return calibrated(
        calibration.for_device(device),
        alike(state.records, state.last_fingerprint),
        model=model_of(state),
        device=device,
        trace=Footprints(state.spec, device.kind, run_code=False),
    )


def study_device(spec: SweepSpec, records: Sequence[Record]) -> Device:
    """Returns the device that a study ran on last.

    Raises:
        DeviceError: If the device is unknown and cannot be estimated.
        StudyError: If no trial has recorded its device.
    """
    fingerprint = last_fingerprint(records)
    if fingerprint is None:
        raise StudyError("no trial of the study has recorded the device it ran on")
    name = "cpu" if fingerprint.device == "cpu" else fingerprint.device_name
    device = find_or_estimate_device(name, fingerprint.device_memory_bytes, fingerprint.properties)
    host_bytes = spec.host_memory_bytes or fingerprint.host_memory_bytes
    return device.in_node(spec.cluster.gpus_per_node, host_bytes)
