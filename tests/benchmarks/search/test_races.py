"""Races of samplers over surfaces that tables hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.search.command import main
from benchmarks.search.races import AFTER, figures, race
from benchmarks.search.rivals import RIVALS, AbstractRival
from benchmarks.search.surfaces import Surface, surfaces_in
from tests.benchmarks.published.rows import write_table

KEYS = {
    *("trials_to_5pct", "trials_to_2pct", "oom_trials"),
    *(f"regret_at_{trials}" for trials in AFTER),
}


def rows() -> list[dict[str, str]]:
    """Twelve candidates; one ran out, one failed, one is repeated, one contradicts itself."""
    made = [
        {
            "micro_batch": str(2**power),
            "ckpt": ckpt,
            "samples_per_s": str(10 * (power + 1) * (0.8 if ckpt == "full" else 1)),
            "ranking_sets": "S1",
            "global_batch": "64",
            "grad_accum": "",
        }
        for power in range(6)
        for ckpt in ("none", "full")
    ]
    made[10] |= {"samples_per_s": "", "oom": "true"}
    made[9] |= {"samples_per_s": "", "notes": "RUN FAILED"}
    again = {**made[0], "samples_per_s": "12"}
    odd = {**made[1], "samples_per_s": "999", "notes": "CHECK"}
    return [*made, again, odd]


@pytest.fixture
def surface(tmp_path: Path) -> Surface:
    write_table(tmp_path, "table", rows())
    (found,) = surfaces_in(tmp_path, lambda _: ConstantMfu(), least=9)
    return found


def test_a_set_is_a_surface(surface: Surface) -> None:
    assert surface.name == "table/S1"
    assert len(surface) == 12
    assert set(surface.distributions) == {"micro_batch", "ckpt"}
    assert int(np.isnan(surface.rate).sum()) == 2
    assert surface.rate[0] == pytest.approx(11)  # the mean of the repeated one
    assert surface.best == pytest.approx(50)
    assert surface.log_rate is not None
    assert len(surface.log_rate) == 12


def test_small_sets_and_other_rows_are_no_surfaces(tmp_path: Path) -> None:
    write_table(tmp_path, "table", rows()[:6])

    assert surfaces_in(tmp_path, lambda _: ConstantMfu(), least=9) == ()


class InOrder(AbstractRival):
    def next(self, free: np.ndarray) -> int:
        return int(np.flatnonzero(free)[0])

    def tell(self, row: int, rate: float | None) -> None:
        pass


def test_a_race_ends_with_the_best(surface: Surface) -> None:
    found = race(surface, InOrder(surface, 0))

    assert surface.rate[8] == surface.best
    assert len(found.regret) == 9
    assert found.trials_to(0.02) == 9
    assert found.trials_to(0.3) == 7  # 40 of 50
    assert found.ran_out == 0
    assert set(figures([found])) == KEYS


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_comes_to_the_end(surface: Surface, name: str) -> None:
    found = race(surface, RIVALS[name](surface, 3))

    assert found.regret[-1] == 0
    assert len(found.regret) <= len(surface)


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "table", rows())
    status = main([str(tmp_path), "--json", "--seeds", "1"], lambda _: ConstantMfu())
    told = json.loads(capsys.readouterr().out)

    assert status == 0
    assert set(told["overall"]) == set(RIVALS)
    assert all(set(figures_of) == KEYS for figures_of in told["overall"].values())
    assert list(told["surfaces"]) == ["table/S1"]


def test_no_tables_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")], lambda _: ConstantMfu()) == 2
    assert "is no directory" in capsys.readouterr().err
