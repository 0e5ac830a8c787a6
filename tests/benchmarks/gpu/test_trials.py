"""Parts that run trials: real ones of tiny models on one worker, and what made-up ones mean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu import honesty, limit, out_of_memory, overhead, surfaces
from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.command import Asked
from benchmarks.gpu.found import Found
from benchmarks.gpu.measuring import FILE, append, row_of
from benchmarks.gpu.plain_run import rate_of
from benchmarks.gpu.profile import IDLE, OTHER, by_kind, kind_of
from search_spaces.errors import UserError
from tests.benchmarks.gpu.values import a_plan, costs, measured, report
from tests.benchmarks.gpu.values import out_of_memory as ran_out

# ---------------------------------------------------------------- out of memory


def an_end(number: int, **special: Any) -> dict[str, Any]:
    usual = {
        "number": number,
        "outcome": "out_of_memory",
        "phase": "forward",
        "wanted_bytes": 9_000,
        "limit_bytes": 8_000,
        "residual_bytes": 0,
        "replaced": False,
        "process": 1,
    }
    return usual | special


def holds(found: Found) -> dict[str, bool | None]:
    return {verdict.what: verdict.holds for verdict in found.verdicts}


def test_many_in_a_row_hold_if_each_is_told_and_comes_back() -> None:
    rows = [an_end(number) for number in range(5)]

    found = out_of_memory.judged(rows, [10.0, 10.1, 9.9], [10.0, 10.0, 10.05], wanted=5)

    assert set(holds(found).values()) == {True}
    assert found.left == ""


@pytest.mark.parametrize(
    ("special", "what"),
    [
        ({"outcome": "measured"}, "out of memory in a row"),
        ({"wanted_bytes": None}, "told with the bytes wanted"),
        ({"residual_bytes": 65 * 2**20}, "memory back, or worker replaced"),
        ({"residual_bytes": None}, "memory back, or worker replaced"),
    ],
)
def test_one_that_was_not_told_or_left_memory_is_missed(special: dict[str, Any], what: str) -> None:
    rows = [an_end(0), an_end(1, **special)]

    found = out_of_memory.judged(rows, [10.0], [10.0], wanted=2)

    assert holds(found)[what] is False
    assert holds(found)["reference plan's speed after it"] is True


def test_a_worker_that_was_replaced_left_nothing() -> None:
    rows = [an_end(0, residual_bytes=2**30, replaced=True), an_end(1, process=2)]

    found = out_of_memory.judged(rows, [10.0], [10.0], wanted=2)

    assert holds(found)["memory back, or worker replaced"] is True
    assert found.figures["processes"] == 2


def test_a_reference_that_is_slower_afterwards_is_missed_and_noise_is_not_judged() -> None:
    rows = [an_end(0)]
    what = "reference plan's speed after it"

    slower = out_of_memory.judged(rows, [10.0, 10.1], [9.5, 9.6], wanted=1)
    noisy = out_of_memory.judged(rows, [10.0, 14.0], [9.5, 9.6], wanted=1)

    assert holds(slower)[what] is False
    assert holds(noisy)[what] is None
    assert out_of_memory.judged(rows, [1.0], [1.0], wanted=3).left == "2 of 3 were not tried"


@pytest.mark.thorough
@pytest.mark.slow
def test_six_in_a_row_on_one_worker(asked: Asked) -> None:
    found = out_of_memory.measure(asked)

    told = holds(found)
    assert told.pop("reference plan's speed after it") in (True, False, None)  # a busy machine
    assert told == dict.fromkeys(told, True)
    assert len(found.rows) == 6
    assert found.figures["processes"] == 1 + found.figures["replaced"]
    for row in found.rows:
        assert row["wanted_bytes"] > row["limit_bytes"] > 0
    assert len({(row["checkpoint_ratio"]) for row in found.rows}) == 3


# ---------------------------------------------------------------- honesty


def a_comparison(ratio: float, **special: Any) -> dict[str, Any]:
    return {"model": "m", "plan": "p", "plain_ratio": ratio, "losses_hold": True, **special}


def test_the_worst_of_the_plain_loops_counts() -> None:
    close = honesty.judged([a_comparison(1.019), a_comparison(0.985)], wanted=2)
    far = honesty.judged([a_comparison(1.0), a_comparison(0.97)], wanted=3)

    assert set(holds(close).values()) == {True}
    assert close.figures["worst"] == pytest.approx(0.019)
    assert far.verdicts[0].holds is False
    assert far.verdicts[0].reached == "3.0% at worst of 2"
    assert far.left == "1 plans were not compared"
    assert honesty.judged([{"outcome": "out_of_memory"}], wanted=1).verdicts[0].holds is None


def test_other_losses_are_missed() -> None:
    found = honesty.judged([a_comparison(1.0), a_comparison(1.0, losses_hold=None)], wanted=2)

    assert found.verdicts[1].holds is False


def test_the_rate_of_a_plain_loop_is_the_median_of_its_steady_steps() -> None:
    seconds = [9.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    said = [json.dumps({"step": at, "samples_per_second": 16 / s}) for at, s in enumerate(seconds)]

    assert rate_of("\n".join(["a warning", *said]), 16) == pytest.approx(16.0)
    with pytest.raises(UserError, match="3 steps"):
        rate_of("\n".join(said[:3]), 16)


@pytest.mark.thorough
def test_a_plan_its_exported_script_and_a_plain_loop(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(honesty, "_LONGEST_SECONDS", 900.0)  # beside other tests

    found = honesty.measure(asked)

    (row,) = found.rows
    assert row["losses_hold"] is True
    assert row["differs"].count(";") == 0  # settings are the plan's; speed may differ here
    assert row["plain"] > 0
    assert row["plain_ratio"] == pytest.approx(row["plain"] / row["ours"])
    assert found.verdicts[1].holds is True
    assert honesty.measure(asked).rows == [row]  # kept, and not compared again


# ---------------------------------------------------------------- the limit


def test_the_share_is_of_the_matmul_rate() -> None:
    seconds = {"matmul": 1.5, "idle": 0.5}

    found = limit.judged(measured(seconds=2.0, flops=4e12), 3e12, seconds, a_plan(), "made up")

    assert found.figures["share_of_matmul_rate"] == pytest.approx(2 / 3)
    assert found.rows == [
        {"work": "matmul", "seconds": 1.5, "share": 0.75},
        {"work": "idle", "seconds": 0.5, "share": 0.25},
    ]
    assert [verdict.holds for verdict in found.verdicts] == [True, True]
    low = limit.judged(measured(flops=4e12), 4e12, None, a_plan(), "made up")
    assert [verdict.holds for verdict in low.verdicts] == [False, False]


def test_the_winner_is_the_sweeps_then_the_fastest_plan(asked: Asked) -> None:
    assert limit.winner_of(asked, LLAMA_1B)[1] is None
    slow, fast = a_plan(), a_plan(micro_batch=8, accumulation=2)
    for plan, seconds in ((slow, 2.0), (fast, 1.0)):
        append(asked.out / FILE, row_of(LLAMA_1B.name, plan, report(measured(seconds=seconds))))
    append(asked.out / FILE, row_of(LLAMA_1B.name, a_plan(micro_batch=1), report(ran_out())))
    assert limit.winner_of(asked, LLAMA_1B)[:2] == (None, fast)
    told = [
        {"model": model, "sequence_length": at, "plan": plan.as_dict(), "tokens_per_second": rate}
        for model, at, plan, rate in (
            (LLAMA_1B.name, 2048, fast, 10.0),
            (LLAMA_1B.name, 4096, slow, 12.0),
            ("another", 2048, fast, 99.0),
        )
    ]
    (asked.out / limit.WINNERS).write_text(json.dumps(told))
    assert limit.winner_of(asked, LLAMA_1B)[:2] == (4096, slow)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "matmul"),
        ("nvjet_hsh_192x192_64x4_2x1", "matmul"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("vectorized_layer_norm_kernel", "norms and loss"),
        ("void at::native::vectorized_elementwise_kernel<4, silu>", OTHER),
    ],
)
def test_kernels_are_told_apart_by_name(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_what_no_kernel_takes_is_idle() -> None:
    told = by_kind([("gemm a", 1.0), ("gemm b", 2.0), ("silu", 0.5)], 5.0)

    assert told == {"matmul": 3.0, IDLE: 1.5, OTHER: 0.5}
    assert by_kind([("gemm", 2.0)], 1.0)[IDLE] == 0.0


@pytest.mark.thorough
def test_a_winner_is_measured_and_traced(asked: Asked) -> None:
    found = limit.measure(asked)

    assert found.figures["share_of_matmul_rate"] > 0
    assert {row["work"] for row in found.rows} >= {"matmul", IDLE}
    assert sum(row["share"] for row in found.rows) == pytest.approx(1.0)


# ---------------------------------------------------------------- surfaces


def test_two_complete_grids_hold() -> None:
    whole = surfaces.Surface(
        name="a",
        plans=200,
        wanted=240,
        done=240,
        repeated=20,
        out_of_memory=40,
        best=10.0,
        spread=0.02,
    )

    assert set(holds(surfaces.judged([whole, whole])).values()) == {True}
    assert surfaces.judged([whole, replace(whole, done=100)]).left == "140 measurements are missing"
    assert surfaces.judged([whole, replace(whole, plans=199)]).verdicts[0].holds is False
    assert surfaces.judged([whole, replace(whole, repeated=19)]).verdicts[1].holds is False


def test_the_spread_is_of_plans_with_all_repeats() -> None:
    rows = [
        {"micro_batch": size, "repeat": str(at + 1), "samples_per_s": rate, "oom": "false"}
        for size, rates in {"1": ("10", "11", "12"), "2": ("5",)}.items()
        for at, rate in enumerate(rates)
    ]
    rows.append({"micro_batch": "4", "repeat": "1", "samples_per_s": "", "oom": "true"})

    found = surfaces.told("a", 3, 5, rows, ("micro_batch",))

    assert found.spread == pytest.approx(2 / 11)
    assert (found.best, found.done, found.repeated, found.out_of_memory) == (12.0, 5, 1, 1)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_small_grid_is_recorded_and_goes_on(asked: Asked) -> None:
    late = replace(asked, until=asked.clock() - 1)
    begun = surfaces.measure(late)
    assert begun.left == "6 measurements are missing"

    found = surfaces.measure(asked)

    assert found.left == ""
    (row,) = found.rows
    assert (row["plans"], row["done"], row["wanted"], row["repeated"]) == (4, 6, 6, 1)
    assert row["best"] > 0
    table = next((asked.out / "surfaces").glob("*.csv"))
    assert table.with_suffix(".yaml").exists()
    assert len(table.read_text().splitlines()) == 1 + 6


# ---------------------------------------------------------------- overhead


def test_overhead_is_what_is_beyond_build_and_steps() -> None:
    row = overhead.row_of("warm worker", a_plan(), report(measured(), seconds=10.0))

    assert row["overhead_seconds"] == pytest.approx(10.0 - 1.0 - 5.0)
    failed = overhead.row_of("warm worker", a_plan(), report(ran_out(costs=costs())))
    assert "overhead_seconds" not in failed


def test_medians_of_each_way_are_compared() -> None:
    def trial(way: str, seconds: float) -> dict[str, Any]:
        return overhead.row_of(way, a_plan(), report(measured(), seconds=seconds))

    rows = [trial("warm worker", s) for s in (6.1, 6.2, 9.0)]
    rows += [trial("cold worker", s) for s in (20.0, 24.0)]

    found = overhead.judged(rows, (), wanted=5)

    assert found.figures["ways"]["warm worker"]["overhead_seconds"] == pytest.approx(0.2)
    assert found.figures["cold_over_warm"] == pytest.approx(16.0 / 0.2)
    assert [verdict.holds for verdict in found.verdicts] == [True, True]
    assert overhead.judged(rows[:3], (), wanted=5).verdicts[1].holds is None


@pytest.mark.thorough
def test_warm_trials_cost_less_than_cold_ones_and_so_they_do_under_ray(asked: Asked) -> None:
    found = overhead.measure(replace(asked, ray=True))

    assert [verdict.holds for verdict in found.verdicts] == [True, True]
    ways = found.figures["ways"]
    assert ways["cold worker"]["worker_seconds"] > 1
    assert ways["warm worker"]["worker_seconds"] < 1
    warm, cold = found.figures["under_ray"]
    assert (warm["trials"], cold["trials"]) == (overhead.TINY_WARM - 1, 1)
    assert warm["median_seconds"] < cold["median_seconds"]
