"""Rows of tables: CSV, parquet and Arrow."""

import csv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError, require
from workers.data.forms import HEAD_BYTES, WHOLE_BYTES, delimiter_of
from workers.data.records import FileReading

Rows = Iterator[tuple[str, dict[str, Any]]]  # each with its location, for messages
_BATCH_ROWS = 256


def csv_rows(path: Path, text: str, *, is_cut: bool) -> Rows:
    """Yields the rows of a table in text, whose first row is the header; if it is cut, all but one.

    Raises:
        DataError: If a row has another number of cells than the header.
    """
    delimiter = delimiter_of(text[:HEAD_BYTES], strict=False, is_whole=len(text) <= HEAD_BYTES)
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter or ",")
    header = next(filter(None, reader), [])
    rows = [(reader.line_num, row) for row in reader if row]
    for line, row in rows[:-1] if is_cut else rows:
        if len(row) != len(header):
            raise DataError(f"{path}:{line} has {len(row)} cells, the header has {len(header)}")
        yield f"{path}:{line}", dict(zip(header, row, strict=True))


def table_rows(path: Path, *, is_parquet: bool, reading: FileReading) -> Rows:
    """Yields the rows of a parquet or Arrow file, of a large one up to `WHOLE_BYTES`.

    Raises:
        DataError: If it cannot be read.
        MissingExtraError: If pyarrow is not installed.
    """
    require("pyarrow")
    import pyarrow
    import pyarrow.parquet

    row = read_bytes = 0
    try:
        if is_parquet:
            batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS)
        else:
            batches = _arrow_table(path).to_batches(max_chunksize=_BATCH_ROWS)
        for batch in batches:
            if read_bytes > WHOLE_BYTES:
                reading.is_whole = False
                return
            read_bytes += batch.nbytes
            for record in batch.to_pylist():
                row += 1
                yield f"{path}, row {row}", record
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _arrow_table(path: Path) -> Any:
    import pyarrow.ipc

    source = pyarrow.memory_map(str(path))
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    reader = pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)
    return reader.read_all()
