"""Kept results: each names the commit whose code made it, and constants follow from them."""

import json
import math
import re
from pathlib import Path

import pytest

from orchestrator.search.search import REGRET_WIDENING

RESULTS = Path("benchmarks/results")
GOAL = 0.9  # true sentences where something better is left


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.json")), ids=lambda file: file.name)
def test_a_result_names_its_commit(file: Path) -> None:
    assert re.fullmatch("[0-9a-f]{7,40}", json.loads(file.read_text("utf-8"))["commit"])


def test_the_product_widens_as_little_as_the_kept_figures_allow() -> None:
    """The least widening whose sentences are true in 90 % of open races of both folders."""
    groups = json.loads((RESULTS / "regret_bound.json").read_text("utf-8"))["by_kind"]

    def true_share(folder: str, widening: str) -> float:
        parts = [
            group
            for name, group in groups.items()
            if name.startswith(f"{folder}, ") and group["open"]
        ]
        true = sum(one["open"] * one["by_widening"][widening]["true_where_open"] for one in parts)
        return float(true / sum(one["open"] for one in parts))

    least = next(
        widening
        for widening in groups["all"]["by_widening"]
        if min(true_share("published", widening), true_share("surfaces", widening)) >= GOAL
    )

    assert math.isclose(float(least), REGRET_WIDENING)


def test_three_records_make_no_published_table_worse_in_memory() -> None:
    sources = json.loads((RESULTS / "published.json").read_text("utf-8"))["sources"]
    pairs = {
        name: (one["memory_median_ape"], one["memory_median_ape_k3"])
        for name, one in sources.items()
        if one["memory_median_ape_k3"] is not None
    }

    assert len(pairs) >= 7
    assert [name for name, (before, after) in pairs.items() if after > before] == []
