"""Samples of text out of files, in bounded time however large the files are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search_spaces.errors import DataError
from search_spaces.spec.schema import DataSpec

MOST_BYTES = 32 * 2**20  # of text that is read, all files together
MOST_SAMPLES = 50_000
_WINDOWS = 64  # stretches of a large file that are read
_BYTES_PER_TOKEN = 64  # more than any tokenizer's mean: a longer sample would be cut anyway
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_PARAGRAPH_END = re.compile(rb"\n[ \t\r]*\n\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Some bytes of a file, from `start`; whole lines."""

    path: Path
    start: int
    content: bytes

    def where(self, offset: int) -> str:
        """The place of a byte of `content`, for a person: its line, or else its byte."""
        if self.start:
            return f"{self.path}, byte {self.start + offset}"
        line = self.content.count(b"\n", 0, offset) + 1
        return f"{self.path}:{line}"


def read_samples(data: DataSpec, sequence_length: int) -> list[str]:
    """The texts of `data.files`, in order, without empty ones.

    Files beyond `MOST_BYTES` in total are read in evenly spaced stretches, and of more than
    `MOST_SAMPLES` samples evenly spaced ones are kept: the same ones every time. A sample
    is cut where it has more text than `sequence_length` tokens can hold.

    Raises:
        DataError: If a file is missing, no file or no UTF-8, if a JSONL line is no object or
            lacks the field, or if no text is found.
    """
    longest = sequence_length * _BYTES_PER_TOKEN
    paths = [Path(file).expanduser() for file in data.files]
    total = sum(map(_size, paths))
    texts: list[str] = []
    for path in paths:
        is_json = path.suffix.lower() in _JSON_SUFFIXES
        if data.split == "file" and not is_json:
            share = min(MOST_BYTES, longest)
            head = _Stretch(path=path, start=0, content=_read(path, 0, share))
            texts.append(_decode(head, 0, head.content, cut=len(head.content) == share))
            continue
        for stretch in _stretches(path, total):
            texts.extend(_json_texts(stretch, data.field) if is_json else _texts(stretch, data))
    kept = [text[:longest] for text in texts if text.strip()]
    if not kept:
        raise DataError(f"no text found in {', '.join(data.files)}")
    if len(kept) > MOST_SAMPLES:
        kept = [kept[i] for i in np.linspace(0, len(kept) - 1, MOST_SAMPLES, dtype=int)]
    return kept


def _size(path: Path) -> int:
    if path.is_dir():
        raise DataError(f"{path} is a folder, data.files takes files")
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _stretches(path: Path, total: int) -> Iterator[_Stretch]:
    """The whole file, or stretches of it from line end to line end."""
    size = _size(path)
    if total <= MOST_BYTES:
        yield _Stretch(path=path, start=0, content=_read(path, 0, size))
        return
    count = max(1, MOST_BYTES * size // total // _WINDOWS)
    for start in np.linspace(0, max(size - count, 0), _WINDOWS, dtype=np.int64).tolist():
        content = _read(path, start, count)
        first = content.find(b"\n") + 1 if start else 0
        last = len(content) if start + count >= size else content.rfind(b"\n") + 1
        if first < last:
            yield _Stretch(path=path, start=start + first, content=content[first:last])


def _texts(stretch: _Stretch, data: DataSpec) -> Iterator[str]:
    if data.split == "line":
        for offset, line in _lines(stretch.content):
            yield _decode(stretch, offset, line)
        return
    start = 0
    for end in _PARAGRAPH_END.finditer(stretch.content):
        yield _decode(stretch, start, stretch.content[start : end.start()])
        start = end.end()
    yield _decode(stretch, start, stretch.content[start:])


def _json_texts(stretch: _Stretch, field: str) -> Iterator[str]:
    for offset, line in _lines(stretch.content):
        text = _decode(stretch, offset, line)
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except ValueError as error:
            raise DataError(f"{stretch.where(offset)} is no JSON: {error}") from error
        if not isinstance(entry, dict):
            raise DataError(
                f"{stretch.where(offset)} holds {type(entry).__name__}, must be a JSON object"
            )
        if not isinstance(entry.get(field), str):
            fault = "no text in" if field in entry else "no"
            raise DataError(
                f"{stretch.where(offset)} has {fault} field {field!r},"
                f" its fields are {', '.join(entry) or 'none'}"
            )
        yield entry[field]


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in content.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def _decode(stretch: _Stretch, offset: int, content: bytes, *, cut: bool = False) -> str:
    """UTF-8 text without a byte-order mark; `cut` content may end within a character."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return content[: error.start].decode("utf-8").removeprefix("\ufeff").strip()
        where = stretch.where(offset + error.start)
        raise DataError(f"{where} is no UTF-8 text: {error.reason}") from error
    return text.removeprefix("\ufeff").strip()
