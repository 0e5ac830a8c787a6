"""Budgets of lines: a feature that would pass one names what leaves (CONTRIBUTING.md)."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_product_and_benchmarks_keep_their_budgets_of_lines() -> None:
    product = sum(map(lines_of, ("orchestrator", "workers", "search_spaces", "plimsoll")))

    assert 0 < product <= 55_000
    assert 0 < lines_of("benchmarks") <= 12_000


def lines_of(folder: str) -> int:
    return sum(len(file.read_text().splitlines()) for file in (ROOT / folder).rglob("*.py"))
