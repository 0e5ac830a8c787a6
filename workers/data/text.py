"""Samples of text from files, read in bounded time however large the files are."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from search_spaces.errors import DataError
from search_spaces.facts import TEXT_FORMS, DataForm, DataReading, SkipReason
from search_spaces.specification.schema import DataSpec
from workers.data.forms import WHOLE_BYTES, DataFile, data_files, read, unpacked
from workers.data.records import FileReading, Render
from workers.data.tables import csv_rows, table_rows

MOST_BYTES = 32 * 2**20  # of text to read, over all files
MOST_SAMPLES = 50_000
_WINDOWS = 64  # chunks to read of a large file
_BYTES_PER_TOKEN = 64  # more than any tokenizer's mean: a longer sample would be cut anyway
_PARAGRAPH_END, _LINE_END = re.compile(rb"\n[ \t\r]*\n\s*"), re.compile(rb"\n")

Sample = TypeVar("Sample", str, list[int])
Records = Iterator[tuple[str, object]]  # each with its location, for messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of samples, or their tokens where files hold those, and how they were read."""

    texts: list[str]
    tokens: list[list[int]]
    reading: DataReading


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Whole lines of a file, from byte `start`."""

    path: Path
    start: int
    content: bytes

    def location(self, offset: int) -> str:
        """Returns the location of a byte of `content` for messages: its line, else its byte."""
        if self.start:
            return f"{self.path}, byte {self.start + offset}"
        line = self.content.count(b"\n", 0, offset) + 1
        return f"{self.path}:{line}"


def read_texts(data: DataSpec, sequence_length: int, render: Render | None = None) -> Texts:
    """Returns the texts of `data.files`, or their tokens, in order, without empty ones.

    Files of more than `MOST_BYTES` in total are read in evenly spaced chunks, those that can only
    be read from their start up to `WHOLE_BYTES`. Of more than `MOST_SAMPLES` samples or
    `MOST_BYTES` of text, evenly spaced samples remain. All choices are the same every time. A
    sample is cut if it has more text than `sequence_length` tokens can hold.

    Args:
        data: The files, and the fields of their records.
        sequence_length: Most tokens of a sample.
        render: Chat template; None to join the contents of messages.

    Raises:
        DataError: If a file is missing, of a form that is not read, or holds something else than
            its start says; if a record lacks the fields, or if there is no text.
    """
    longest = sequence_length * _BYTES_PER_TOKEN
    files = list(data_files(data))
    total = sum(file.size_bytes for file in files if file.is_plain)
    skipped: Counter[SkipReason] = Counter()
    texts: list[str] = []
    tokens: list[list[int]] = []
    readings = [FileReading(data.field, render) for _ in files]
    for file, reading in zip(files, readings, strict=True):
        for where, record in _records(file, total, longest, reading):
            is_text = file.form in TEXT_FORMS
            text = str(record) if is_text else reading.text(record, where)
            if isinstance(text, list):
                tokens.append(text[: sequence_length + 1])
            elif text is None or not text.strip():
                skipped["null" if text is None else "empty"] += 1
            else:
                texts.append(text[:longest])
        if data.field and reading.missing:
            raise DataError(f"{file.path}: no record has the field {' or '.join(reading.missing)}")
    if texts and tokens:
        raise DataError(f"{', '.join(data.files)} hold text and tokens: name those of one kind")
    if not texts and not tokens:
        reasons = "".join(f"; {count:,} {reason}" for reason, count in skipped.items())
        raise DataError(f"no text found in {', '.join(data.files)}{reasons}")
    return Texts(
        texts=_thinned(texts),
        tokens=_thinned(tokens),
        reading=DataReading(
            forms=tuple(dict.fromkeys(file.form for file in files)),
            fields=tuple(dict.fromkeys(name for each in readings for name in each.named())),
            chat=next((each.chat for each in readings if each.chat), None),
            is_tokens=len(tokens) > 0,
            complete=all(each.is_whole for each in readings),
            samples=len(texts) + len(tokens),
            skipped=tuple(skipped.items()),
        ),
    )


def _thinned(samples: list[Sample]) -> list[Sample]:
    size = max(sum(map(len, samples)), MOST_BYTES)
    most = min(MOST_SAMPLES, len(samples) * MOST_BYTES // size)
    if len(samples) <= most:
        return samples
    return [samples[i] for i in np.linspace(0, len(samples) - 1, max(most, 1), dtype=int)]


def _records(file: DataFile, total: int, longest: int, reading: FileReading) -> Records:
    path, form = file.path, file.form
    if form in ("parquet", "Arrow"):
        yield from table_rows(path, is_parquet=form == "parquet", reading=reading)
    elif file.is_plain and form in ("JSON lines", "paragraph", "line"):
        reading.is_whole = total <= MOST_BYTES
        for chunk in _chunks(path, file.size_bytes, total):
            yield from _values(chunk) if form == "JSON lines" else _parts(chunk, form)
    elif form == "file":
        chunk = _Chunk(path=path, start=0, content=unpacked(path, longest))
        yield str(path), _decode(chunk, 0, chunk.content, is_cut=True).strip()
    else:
        content = unpacked(path, WHOLE_BYTES + 1)
        if is_cut := len(content) > WHOLE_BYTES:
            content = content[: content.rfind(b"\n") + 1] or content
        reading.is_whole = not is_cut
        chunk = _Chunk(path=path, start=0, content=content)
        if form == "CSV":
            yield from csv_rows(path, _decode(chunk, 0, content, is_cut=is_cut), is_cut=is_cut)
        elif form in TEXT_FORMS:
            yield from _parts(chunk, form)
        else:
            values = _values(chunk, is_array=form == "JSON array", is_cut=is_cut)
            yield from _within(values, reading) if form == "JSON objects" else values


def _chunks(path: Path, size: int, total: int) -> Iterator[_Chunk]:
    """Yields the whole file, or chunks of it that begin and end at line ends."""
    if total <= MOST_BYTES:
        yield _Chunk(path=path, start=0, content=read(path, 0, size))
        return
    count = max(1, MOST_BYTES * size // total // _WINDOWS)
    for start in np.linspace(0, max(size - count, 0), _WINDOWS, dtype=np.int64).tolist():
        content = read(path, start, count)
        first = content.find(b"\n") + 1 if start else 0
        last = len(content) if start + count >= size else content.rfind(b"\n") + 1
        if first < last:
            yield _Chunk(path=path, start=start + first, content=content[first:last])


def _parts(chunk: _Chunk, form: DataForm) -> Records:
    """Yields the lines of a chunk, or its paragraphs without empty ones."""
    content = chunk.content.removesuffix(b"\n")
    start = 0
    for end in (*(_PARAGRAPH_END if form == "paragraph" else _LINE_END).finditer(content), None):
        text = _decode(chunk, start, content[start : end.start() if end else None]).strip()
        if text or form == "line":
            yield "", text
        start = end.end() if end else start


def _values(chunk: _Chunk, *, is_array: bool = False, is_cut: bool = False) -> Records:
    """Yields the elements of a JSON array, or JSON values that follow each other."""
    text = _decode(chunk, 0, chunk.content, is_cut=is_cut)
    decoder, gap = json.JSONDecoder(), re.compile(r"[\s,]*" if is_array else r"\s*")
    at, line, end = 0, 1, text.index("[") + 1 if is_array else 0
    while True:
        before = gap.match(text, end)
        start = before.end() if before else end
        line, at = line + text.count("\n", at, start), start
        where = f"{chunk.path}:{line}"
        if chunk.start:
            where = f"{chunk.path}, line {line} after byte {chunk.start}"
        if start == len(text) and (is_cut or not is_array):
            return
        if is_array and text.startswith("]", start):
            if text[start + 1 :].strip():
                raise DataError(f"{where} goes on after the end of its JSON array")
            return
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if is_cut:
                return
            raise DataError(f"{where} is not valid JSON: {error}") from error
        yield where, value


def _within(values: Records, reading: FileReading) -> Records:
    """Yields the values, or the records in the only list of a single one that is none itself."""
    first = list(islice(values, 2))
    value = first[0][1] if len(first) == 1 else None
    items = value.items() if isinstance(value, dict) and not reading.fits(value) else ()
    lists = {
        key: records
        for key, records in items
        if isinstance(records, list) and records and isinstance(records[0], dict)
    }
    if len(lists) == 1:
        ((reading.within, records),) = lists.items()
        where = f"{first[0][0]}, {reading.within}"
        yield from ((f"{where}[{i}]", each) for i, each in enumerate(records))
    else:
        yield from chain(first, values)


def _decode(chunk: _Chunk, offset: int, content: bytes, *, is_cut: bool = False) -> str:
    """Decodes UTF-8 without a byte-order mark; `is_cut` content may end within a character."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_cut and error.reason == "unexpected end of data":
            return content[: error.start].decode("utf-8").removeprefix("\ufeff")
        raise DataError(
            f"{chunk.location(offset + error.start)} is not UTF-8 text: {error.reason}; iconv -f"
            " ISO-8859-1 -t UTF-8 converts Latin-1"
        ) from error
    return text.removeprefix("\ufeff")
