"""A row's cells, and the one way out for a row that cannot be used."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = (
    *("source", "model"),
    *("n_params", "n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab", "seq_len"),
    *("gpu", "gpu_mem_gib", "n_gpus"),
    *("precision", "optimizer", "sharding", "offload", "ckpt", "attn_impl", "compile"),
    *("tp", "pp", "dp", "cp_or_sp", "micro_batch", "grad_accum", "global_batch"),
    *("samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "mfu_or_hfu"),
    *("peak_mem_gib", "oom", "notes", "ranking_sets"),
)


class UnusableRowError(Exception):
    """The row is skipped; the message is the reason, the same for all rows of its sort."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column; an empty cell is something that the source did not say."""

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell in lower case, without blanks around it; empty if nothing stands there."""
        return (self.cells.get(column) or "").strip().lower()

    def written(self, column: str) -> str:
        """The cell as it is written."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """The cell as a number, None if empty.

        Raises:
            UnusableRowError: If something else stands there.
        """
        written = self.text(column)
        if not written:
            return None
        try:
            value = float(written.replace(",", ""))
        except ValueError:
            raise UnusableRowError(f"{column} is no number") from None
        if not math.isfinite(value) or value < 0:
            raise UnusableRowError(f"{column} is no number")
        return value

    def count(self, column: str) -> int | None:
        """The cell as a whole number from 1; None if empty or 0.

        Raises:
            UnusableRowError: If something else stands there.
        """
        value = self.number(column)
        return None if value is None or value < 1 else round(value)

    def notes_have(self, pattern: str) -> bool:
        """Returns whether the notes match, in any case."""
        return re.search(pattern, self.text("notes")) is not None

    def noted(self, pattern: str) -> int | None:
        """The whole number that a pattern's group finds in the notes."""
        found = re.search(pattern, self.text("notes"))
        return int(found.group(1)) if found else None
