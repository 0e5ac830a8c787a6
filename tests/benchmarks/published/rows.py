"""Rows of published tables, written by the tests that read them."""

import csv
from pathlib import Path

from benchmarks.published.cells import COLUMNS
from benchmarks.published.reader import read
from benchmarks.published.values import Run

# a plain GPT on one A100, measured
PLAIN = {
    "source": "somebody",
    "model": "gpt-1.3B",
    "n_layers": "24",
    "hidden": "2048",
    "n_heads": "16",
    "vocab": "50304",
    "seq_len": "1024",
    "gpu": "A100-80GB",
    "gpu_mem_gib": "80",
    "n_gpus": "1",
    "precision": "bf16 amp",
    "sharding": "none",
    "ckpt": "none",
    "micro_batch": "4",
    "grad_accum": "1",
    "global_batch": "4",
    "samples_per_s": "10",
    "peak_mem_gib": "30",
    "oom": "false",
}


def write_table(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, fieldnames=[*COLUMNS, "url_or_path"])
        writer.writeheader()
        writer.writerows(PLAIN | row for row in rows)


def read_one(folder: Path, **cells: str) -> Run:
    """The run of the plain row with other cells."""
    write_table(folder, "table", [cells])
    tables = read(folder)
    assert not tables.skipped, tables.skipped
    (run,) = tables.runs
    return run


def reason_of(folder: Path, **cells: str) -> str:
    """Returns why the plain row with other cells is skipped."""
    write_table(folder, "table", [cells])
    tables = read(folder)
    assert not tables.runs
    (skip,) = tables.skipped
    return skip.reason
