"""Samples of text from files, read in bounded time however large the files are."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search_spaces.errors import DataError
from search_spaces.spec.files import is_folder, with_home
from search_spaces.spec.schema import DataSpec

MOST_BYTES = 32 * 2**20  # of text to read, over all files
MOST_SAMPLES = 50_000
_WINDOWS = 64  # chunks to read of a large file
_BYTES_PER_TOKEN = 64  # more than any tokenizer's mean: a longer sample would be cut anyway
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_PARAGRAPH_END = re.compile(rb"\n[ \t\r]*\n\s*")


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


def read_samples(data: DataSpec, sequence_length: int) -> list[str]:
    """Returns the texts of `data.files`, in order, without empty ones.

    Files of more than `MOST_BYTES` in total are read in evenly spaced chunks. Of more than
    `MOST_SAMPLES` samples, evenly spaced ones remain. Both choices are the same every time. A
    sample is cut if it has more text than `sequence_length` tokens can hold.

    Raises:
        DataError: If a path is missing, a folder or not UTF-8, if a JSONL line is not an object
            or lacks the field, or if there is no text.
    """
    longest = sequence_length * _BYTES_PER_TOKEN
    paths = [with_home(file) for file in data.files]
    total = sum(map(_size, paths))
    texts: list[str] = []
    for path in paths:
        is_json = path.suffix.lower() in _JSON_SUFFIXES
        if data.split == "file" and not is_json:
            share = min(MOST_BYTES, longest)
            head = _Chunk(path=path, start=0, content=_read(path, 0, share))
            texts.append(_decode(head, 0, head.content, cut=len(head.content) == share))
            continue
        for chunk in _chunks(path, total):
            texts.extend(_json_texts(chunk, data.field) if is_json else _texts(chunk, data))
    samples = [text[:longest] for text in texts if text.strip()]
    if not samples:
        raise DataError(f"no text found in {', '.join(data.files)}")
    if len(samples) > MOST_SAMPLES:
        samples = [samples[i] for i in np.linspace(0, len(samples) - 1, MOST_SAMPLES, dtype=int)]
    return samples


def _size(path: Path) -> int:
    if is_folder(path):
        raise DataError(f"{path} is a folder, data.files takes files")
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a null byte
        raise DataError(f"{str(path)!r} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a device or a pipe, data.files takes files")
    return found.st_size


def _read(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _chunks(path: Path, total: int) -> Iterator[_Chunk]:
    """Yields the whole file, or chunks of it that begin and end at line ends."""
    size = _size(path)
    if total <= MOST_BYTES:
        yield _Chunk(path=path, start=0, content=_read(path, 0, size))
        return
    count = max(1, MOST_BYTES * size // total // _WINDOWS)
    for start in np.linspace(0, max(size - count, 0), _WINDOWS, dtype=np.int64).tolist():
        content = _read(path, start, count)
        first = content.find(b"\n") + 1 if start else 0
        last = len(content) if start + count >= size else content.rfind(b"\n") + 1
        if first < last:
            yield _Chunk(path=path, start=start + first, content=content[first:last])


def _texts(chunk: _Chunk, data: DataSpec) -> Iterator[str]:
    if data.split == "line":
        for offset, line in _lines(chunk.content):
            yield _decode(chunk, offset, line)
        return
    start = 0
    for end in _PARAGRAPH_END.finditer(chunk.content):
        yield _decode(chunk, start, chunk.content[start : end.start()])
        start = end.end()
    yield _decode(chunk, start, chunk.content[start:])


def _json_texts(chunk: _Chunk, field: str) -> Iterator[str]:
    for offset, line in _lines(chunk.content):
        text = _decode(chunk, offset, line)
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except ValueError as error:
            raise DataError(f"{chunk.location(offset)} is not valid JSON: {error}") from error
        if not isinstance(entry, dict):
            raise DataError(
                f"{chunk.location(offset)} holds {type(entry).__name__}, must be a JSON object"
            )
        if not isinstance(entry.get(field), str):
            fault = "no text in" if field in entry else "no"
            raise DataError(
                f"{chunk.location(offset)} has {fault} field {field!r},"
                f" its fields are {', '.join(entry) or 'none'}"
            )
        yield entry[field]


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in content.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def _decode(chunk: _Chunk, offset: int, content: bytes, *, cut: bool = False) -> str:
    """Decodes UTF-8 without a byte-order mark; `cut` content may end within a character."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return content[: error.start].decode("utf-8").removeprefix("\ufeff").strip()
        location = chunk.location(offset + error.start)
        raise DataError(f"{location} is not UTF-8 text: {error.reason}") from error
    return text.removeprefix("\ufeff").strip()
