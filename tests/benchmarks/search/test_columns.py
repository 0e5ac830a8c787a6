"""Columns that are knobs: those of a recording, and those of published tables."""

from benchmarks.published.cells import Row
from benchmarks.search.columns import knobs_of

HEADER = ("model", "micro_batch", "grad_accum", "ckpt", "pp", "dp", "samples_per_s", "notes")
ROWS = [
    {"micro_batch": "1", "grad_accum": "4", "ckpt": "full", "pp": "2", "dp": "1", "notes": "a"},
    {"micro_batch": "2.0", "grad_accum": "2", "ckpt": "none", "pp": "1", "dp": "1", "notes": "b"},
    {"micro_batch": "2", "grad_accum": "2", "ckpt": "none", "pp": "1", "dp": "2", "notes": "c"},
]


def test_published_knobs_that_vary() -> None:
    found = knobs_of("set", [Row(row) for row in ROWS], HEADER)

    assert list(found) == ["micro_batch", "grad_accum", "ckpt", "pp", "dp"]
    assert found["micro_batch"] == ["1", "2", "2"]  # two spellings of a number are one value


def test_what_follows_from_others_in_a_set_is_left_out() -> None:
    found = knobs_of("bigscience/S002", [Row(row) for row in ROWS], HEADER)

    assert list(found) == ["micro_batch", "grad_accum", "ckpt"]


def test_a_recording_has_the_knobs_of_its_plans() -> None:
    rows = [
        Row(row | {"checkpoint_ratio": ratio, "repeat": ratio})
        for row, ratio in zip(ROWS, ("1", "0", "0"), strict=True)
    ]

    found = knobs_of("set", rows, (*HEADER, "checkpoint_ratio", "repeat"))

    assert list(found) == ["micro_batch", "checkpoint_ratio"]
