"""Parity of plans over architectures: steps of SGD under each plan against a plain loop.

`make parity` runs all models and functions, the test suite a few. For each architecture of
transformers, a small model with random weights takes two optimizer steps under each plan, which are
compared with a loop over single samples through the stock model (`plain_loop`). A user's function
is compared with a loop over whole batches. Engines with their own optimizers (CPU Adam, 8-bit
AdamW) are compared by the losses of a trial.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from transformers.utils import logging as transformers_logging

from tests.workers.parity.architectures import MODELS
from tests.workers.parity.comparison import Compared, Parity
from tests.workers.parity.functions import function_specs
from tests.workers.parity.layouts import FOR_FUNCTIONS, Knobs, layouts_of
from tests.workers.parity.table import merged, read_table, summary, table_of, words_of, write_table


def main() -> int:
    """Compares the models and writes the table."""
    parser = argparse.ArgumentParser(description="Compare plans of many models with a plain loop.")
    parser.add_argument("--tasks", nargs="*", default=None, help="tasks of the models")
    parser.add_argument("--only", nargs="*", default=None, help="model types")
    parser.add_argument("--layouts", nargs="*", default=None, help="names of layouts")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the table")
    parser.add_argument("--add", action="store_true", help="keep the other rows of the file")
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    parity, is_faulty = Parity(), False
    table = read_table(options.out) if options.add and options.out is not None else {}
    for comparison in _comparisons(parity, options):
        compared = list(comparison)
        for row in compared:
            print(
                f"{row.task:24s} {row.model:24s} {row.layout:28s} {words_of(row)[:160]}", flush=True
            )
        is_faulty |= any(row.is_fault for row in compared)
        table = merged(table, table_of(compared))
        write_table(table, options.out)  # a run takes long, and may be ended
    parity.stop()
    print(json.dumps(summary(table)))
    return 1 if is_faulty else 0


def _comparisons(parity: Parity, options: argparse.Namespace) -> Iterator[Iterator[Compared]]:
    """Yields the comparison of each model and function that the options name."""

    def chosen(layouts: Mapping[str, Knobs]) -> dict[str, Knobs]:
        names = options.layouts or layouts
        return {name: knobs for name, knobs in layouts.items() if name in names}

    def is_named(task: str, model: str) -> bool:
        return task in (options.tasks or [task]) and model in (options.only or [model])

    for task, model in MODELS:
        if is_named(task, model) and (layouts := chosen(layouts_of(task, model))):
            yield parity.of_model(task, model, layouts)
    for name, spec in function_specs().items():
        if is_named("function", name):
            yield parity.of_function(name, spec, chosen(FOR_FUNCTIONS))


if __name__ == "__main__":
    sys.exit(main())
