"""Published runs as the forecast reads them, and what records and fits do to it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.families import matmul_weights
from benchmarks.published.fit import _fit_scales, fit
from benchmarks.published.footprints import Model, model_of, spec_of
from benchmarks.published.product import Ours, forecaster_without, lay
from benchmarks.published.rows import executions_of, footprint_for
from search_spaces.costs.calibration import Z_95, Scales, shipped_calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey
from tests.benchmarks.published.rows import read_one
from workers.models.load import describe
from workers.tracing.trace import trace

GIB = 2**30
SMALL = {"n_layers": "2", "hidden": "256", "n_heads": "4", "vocab": "1024", "seq_len": "128"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("footprints")


def footprint_of(model: Model, wanted: frozenset[VariantKey], cache: Path) -> Footprint:
    return trace(spec_of(model), sorted(wanted), cache=cache)


@pytest.fixture
def ours(cache: Path) -> Ours:
    return Ours(
        calibration=shipped_calibration(),
        footprints=lambda model, wanted: footprint_of(model, wanted, cache),
    )


def test_a_linear_loss_has_no_logits(tmp_path: Path, ours: Ours) -> None:
    plain = read_one(tmp_path, **SMALL)
    fused = read_one(tmp_path, **SMALL, notes="Liger fused linear cross entropy")
    laid = lay([plain, fused], ours.footprints)

    assert laid is not None
    kept, none = laid.work.parts.head_saved[laid.work.rows.case]
    # fp32 logits of 4 samples of 128 tokens, and what the fused loss keeps: hidden states
    assert kept > 4 * 4 * 128 * 1024
    assert none < kept / 2


@pytest.mark.parametrize(
    ("gpu", "stated", "gib"),
    [
        ("A100-80GB", "80", 79.15),  # what is printed on it, not what it reports
        ("A100", "40", 39.4),  # another device of that name
        ("A100-80GB", "20", 20.0),  # a budget
        ("cpu", "0.105", 0.105),
    ],
)
def test_the_memory_that_a_table_states_is_the_limit(
    tmp_path: Path, ours: Ours, gpu: str, stated: str, gib: float
) -> None:
    run = read_one(tmp_path, **SMALL, gpu=gpu, gpu_mem_gib=stated)
    laid = lay([run], ours.footprints)

    assert laid is not None
    assert laid.limit_bytes[0] / GIB == pytest.approx(gib, rel=2e-3)


def test_megatron_splits_the_loss_over_the_vocabulary(tmp_path: Path, cache: Path) -> None:
    words = {
        "tp": "2",
        "dp": "1",
        "n_gpus": "2",
        "sharding": "ddp/distributed optimizer (Megatron)",
    }
    run = read_one(tmp_path, **SMALL, **words, precision="bf16", notes="Megatron-LM")
    split = "sequence" if run.layout.sequence_parallel else "tensor"
    wanted = VariantKey("eager", run.states.compute, split)
    found = footprint_of(Model(run.shape, "full", 0, ()), frozenset({wanted}), cache)
    adapted = footprint_for(run, found)

    head, plain = (fp.variant(*wanted).head for fp in (adapted, found))
    assert plain.saved_bytes.per_sample > 0  # Plimsoll's own ranks gather the logits
    assert head.saved_bytes.per_sample == 0
    assert head.saved_bytes.at(4, 1) == pytest.approx(plain.saved_bytes.at(4, 1))


def test_torchtitan_keeps_every_second_product(tmp_path: Path, ours: Ours) -> None:
    selective = {"ckpt": "selective", "n_gpus": "2", "dp": "2", "micro_batch": "2"}
    titan = read_one(tmp_path, **SMALL, **selective, sharding="fsdp_full")
    other = read_one(tmp_path, **SMALL, **selective, sharding="zero3")
    kept = [
        laid.work.parts.block_kept
        for run in (titan, other)
        if (laid := lay([run], ours.footprints))
    ]

    assert kept[0] == pytest.approx(kept[1] / 2)
    assert kept[0].min() > 0


def test_a_run_is_forecast_and_records_correct_it(tmp_path: Path, ours: Ours) -> None:
    run = read_one(tmp_path, **SMALL, samples_per_s="100", peak_mem_gib="1")
    before = ours.forecast([run])
    truth = replace(run, samples_per_second=float(before.samples_per_second[0]) / 2)
    after = ours.calibrated([truth]).forecast([run])

    assert np.isfinite([before.samples_per_second[0], before.memory_bytes[0]]).all()
    assert before.p_fits[0] > 0.99
    assert after.samples_per_second[0] == pytest.approx(truth.samples_per_second, rel=0.1)
    assert after.memory_bytes[0] == pytest.approx(GIB, rel=0.2)


def test_memory_counts_what_its_table_counts(tmp_path: Path, ours: Ours) -> None:
    tensors = read_one(tmp_path, **SMALL, notes="torch max_memory_allocated")
    device = read_one(tmp_path, **SMALL, notes="nvidia-smi")
    told = ours.forecast([tensors, device]).memory_bytes

    assert (tensors.memory_kind, device.memory_kind) == ("allocated", "device")
    assert told[1] > told[0] + 3e8  # context and segments


def test_rows_say_what_each_engine_holds(tmp_path: Path, cache: Path) -> None:
    words = {"n_gpus": "8", "dp": "8", "global_batch": "32", "sharding": "zero3"}
    run = read_one(tmp_path, **SMALL, **words, precision="fp16", notes="DeepSpeed")
    found = footprint_of(
        Model(run.shape, "full", 0, ()),
        frozenset({VariantKey("eager", run.states.compute, "none")}),
        cache,
    )
    rows = executions_of([run], found)

    assert rows.weights_sharded[0]
    assert rows.regathered[0]
    assert rows.shards[0] == 8
    assert (rows.weight_bytes[0], rows.state_bytes[0]) == (2.0, 12.0)


def test_a_source_is_judged_by_what_was_fitted_without_it() -> None:
    without, unknown = forecaster_without("bigscience"), forecaster_without("somebody-new")

    assert unknown.calibration == shipped_calibration()
    assert without.calibration != unknown.calibration


def test_fitted_intervals_hold_their_share() -> None:
    rng = np.random.default_rng(0)
    terms = rng.lognormal(size=(600, 3))
    truth = terms.sum(axis=1) * np.exp(rng.normal(0, 0.3, 600))
    groups = np.array([str(n // 3) for n in range(600)])
    scales = _fit_scales(Scales.before(0.2, (0.5,) * 3, 0.03), terms, truth, groups)
    apart = np.abs(np.log(truth / terms.sum(axis=1)))

    assert (apart <= Z_95 * scales.deviation(terms)).mean() == pytest.approx(0.95, abs=0.01)


@pytest.mark.thorough
def test_what_a_source_measured_does_not_reach_the_fit_without_it(
    tmp_path: Path, ours: Ours
) -> None:
    """A source that is ten times too slow moves the fit of all, and not the one without it."""
    run = read_one(tmp_path, **SMALL, notes="torch max_memory_allocated")
    told = float(ours.forecast([run]).samples_per_second[0])
    runs = [
        replace(run, source=source, samples_per_second=told / factor)
        for source, factor in (("true", 1.0), ("true", 1.0), ("slow", 10.0))
    ]
    laid = lay(runs, ours.footprints)
    assert laid is not None
    whole, without = (
        Ours(calibration=fit(laid, runs, left_out), footprints=ours.footprints)
        .forecast([run])
        .samples_per_second[0]
        for left_out in (None, "slow")
    )
    alone = fit(lay(runs[:2], ours.footprints), runs[:2], None)  # type: ignore[arg-type]

    assert whole < 0.9 * without
    assert Ours(calibration=alone, footprints=ours.footprints).forecast([run]).samples_per_second[
        0
    ] == pytest.approx(without)


def test_a_mixture_of_experts_is_traced_as_one(tmp_path: Path) -> None:
    """Mixtral 8x7B has 46.7e9 parameters, of which a token uses 12.9e9 (Jiang et al. 2024)."""
    shape = {"n_layers": "32", "hidden": "4096", "n_heads": "32", "n_kv_heads": "8"}
    words = {"model": "mixtral-8x7b", "notes": "moe 8 experts top-2", "ffn_hidden": "14336"}
    run = read_one(tmp_path, **shape, **words, vocab="32000", n_params="46702792704")

    spec = spec_of(model_of(run))
    facts = describe(spec.model, spec.train)
    assert facts.parameters == pytest.approx(46.7e9, rel=0.001)
    assert facts.active == pytest.approx(12.9e9, rel=0.002)
    embedding = 32000 * 4096
    assert matmul_weights(run.shape) == pytest.approx(12.9e9 - embedding, rel=0.002)
    held = matmul_weights(run.shape, of_all_experts=True)
    assert held + embedding == pytest.approx(46.7e9, rel=0.001)


def test_ranks_that_share_samples_and_experts(tmp_path: Path, ours: Ours) -> None:
    """Counted by hand: of a block's 4 experts of 3 x 256 x 1024 and attention of 4 x 256 x 256."""
    cells = {"model": "mixtral-small", "ffn_hidden": "1024", "n_gpus": "8", "sharding": "zero3"}
    notes = "moe 4 experts top-2; EP=2"
    run = read_one(tmp_path, **SMALL, **cells, dp="4", cp_or_sp="2", micro_batch="2", notes=notes)
    laid = lay([run], ours.footprints)
    assert laid is not None
    features = laid.work.executions

    assert (features.data[0], features.context[0], features.shards[0]) == (8, 2, 8)
    assert features.micro_batch[0] == 1.0  # the tokens of two samples, divided by two ranks
    assert (features.experts[0], features.routed[0]) == (2, 2.0)
    experts = 4 * 3 * 256 * 1024
    assert features.expert_share[0] == pytest.approx(experts / (experts + 4 * 256 * 256))
