"""Forms of data files: found in their content, since a suffix may say anything."""

import bz2
import codecs
import csv
import gzip
import json
import lzma
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.errors import DataError, require
from search_spaces.facts import TEXT_FORMS, DataForm
from search_spaces.safety.files import is_file, is_folder, packaged_table
from search_spaces.specification.schema import DataSpec

csv.field_size_limit(2**31 - 1)
WHOLE_BYTES = 256 * 2**20  # most of a file that can only be read from its start
HEAD_BYTES = 2**18  # to look at
_HEAD_LINES = 20
_PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
_PLAIN_CELL, _HEADER_CELL = re.compile(r"[A-Za-z_][\w.-]*"), re.compile(r"[^\W\d][^,;\t]{,60}")
_ARROW_STREAM = b"\xff\xff\xff\xff"
_REFUSED: Mapping[bytes, str] = {
    mark.encode("latin-1"): kind
    for mark, kind in packaged_table(__package__, "refused_files.yaml").items()
}
READ = (
    "JSON lines, JSON arrays, CSV, parquet, saved `datasets` folders and UTF-8 text are read, other"
    " data by a function that makes batches"
)


def _open_zst(path: Path) -> Any:
    require("pyarrow")
    import pyarrow

    return pyarrow.input_stream(str(path), compression="zstd")


_OPENERS: Mapping[bytes, Callable[[Path], Any]] = MappingProxyType(
    {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\0": lzma.open,
        b"\x28\xb5\x2f\xfd": _open_zst,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of data; `is_plain` if its bytes are UTF-8 text as they are."""

    path: Path
    form: DataForm
    size_bytes: int
    is_plain: bool


def data_files(data: DataSpec) -> Iterator[DataFile]:
    """Yields the files of `data.files`, those of folders by name.

    Raises:
        DataError: If a file is missing, or none whose form is read.
    """
    for name in data.files:
        path = Path(name)
        if not path.exists():
            raise DataError(f"{name} {_absence(name)}")
        if not is_folder(path):
            yield _recognized(path, data)
            continue
        files = [_recognized(file, data) for file in _files_in(path)]
        kinds = {"text" if each.form in TEXT_FORMS else each.form: each.path for each in files}
        if len(kinds) > 1:
            raise DataError(
                f"{path} is a folder of files of several forms, such as"
                f" {' and '.join(each.name for each in kinds.values())}: name those to read"
            )
        yield from files


def _absence(name: str) -> str:
    if re.match(r"\w+://", name):
        return "is a URL, data.files takes files and folders: download or mount it first"
    if set("*?[") & set(name):
        return "is a pattern, data.files takes files and folders, of which it reads every file"
    return (
        "is neither a file nor a folder here; a data set of the Hub is saved first, by"
        " datasets.load_dataset(...).save_to_disk(FOLDER)"
    )


def _files_in(folder: Path) -> list[Path]:
    """Returns the files of a folder; of a saved `datasets` folder, those of its training split."""
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(state.parent.name for state in folder.glob("*/state.json"))
        if "train" not in splits and len(splits) != 1:
            raise DataError(f"{folder} has the splits {', '.join(splits)}: name the folder of one")
        folder /= "train" if "train" in splits else splits[0]
    pattern = "data*.arrow" if (folder / "state.json").is_file() else "**/*"
    visible = (path for path in folder.glob(pattern) if "/." not in f"/{path.relative_to(folder)}")
    files = sorted(filter(is_file, visible))
    if not files:
        raise DataError(f"{folder} is a folder without files")
    return files


def _recognized(path: Path, data: DataSpec) -> DataFile:
    size, head, plain = _size(path), read(path, 0, HEAD_BYTES), True
    form: DataForm | None = None
    if head.startswith(b"PAR1"):
        form = "parquet"
    elif head.startswith((b"ARROW1", _ARROW_STREAM)):
        form = "Arrow"
    if form is None:
        plain = _opener(head) is None
        head = unpacked(path, HEAD_BYTES)
        _refuse_unread(path, head)
        text = head.decode("utf-8", "replace").removeprefix("\ufeff")
        form = _text_form(path, text, data, is_whole=len(head) < HEAD_BYTES)
    return DataFile(path=path, form=form, size_bytes=size, is_plain=plain)


def _size(path: Path) -> int:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a null byte
        raise DataError(f"{str(path)!r} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is a device or a pipe, data.files takes files and folders")
    return found.st_size


def read(path: Path, start: int, count: int) -> bytes:
    """Reads bytes of a file.

    Raises:
        DataError: If that fails.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def unpacked(path: Path, count: int) -> bytes:
    """Returns the first bytes of a text, unpacked if it is packed.

    Raises:
        DataError: If it cannot be read or unpacked.
    """
    content = read(path, 0, count)
    if (opener := _opener(content)) is None:
        return content
    try:
        with opener(path) as file:
            return bytes(file.read(count))
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error


def _opener(head: bytes) -> Callable[[Path], Any] | None:
    return next((opener for mark, opener in _OPENERS.items() if head.startswith(mark)), None)


def _refuse_unread(path: Path, head: bytes) -> None:
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()[:64].lower()
    for mark, kind in _REFUSED.items():
        if head.startswith(mark) or start.startswith(mark):
            raise DataError(f"{path} is {kind}; {READ}")
    if _opener(head) or b"\0" in head:
        kind = "packed twice" if _opener(head) else f"binary: byte {head.index(0)} is null"
        raise DataError(f"{path} is {kind}; {READ}")


def _text_form(path: Path, text: str, data: DataSpec, *, is_whole: bool) -> DataForm:
    form = _json_form(path, text, is_whole=is_whole)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = next((each for each in reversed(suffixes) if each not in _PACKED_SUFFIXES), "")
    is_named = suffix in (".csv", ".tsv")
    if form is None and delimiter_of(text, strict=not is_named, is_whole=is_whole):
        form = "CSV"
    if form is not None:
        return form
    if text.strip() and suffix in _DATA_SUFFIXES:
        kind = "a table with a header" if is_named else suffix.removeprefix(".")
        raise DataError(f"{path} is not {kind}: it begins with {text.strip()[:40]!r}; {READ}")
    has_blank_lines = re.search(r"\n[ \t\r]*\n", text.strip()) is not None
    return data.split or ("paragraph" if has_blank_lines else "line")


def _json_form(path: Path, text: str, *, is_whole: bool) -> DataForm | None:
    start, lines = text.lstrip(), text.split("\n")
    lines = (lines if is_whole else lines[:-1])[:_HEAD_LINES]
    are_json = [_is_json(line) for line in lines if line.strip() not in ("", "null")]
    if all(are_json) and len(are_json) > 1:
        return "JSON lines"
    if start.startswith("[") and _begins_array(start, is_whole=is_whole):
        return "JSON array"
    if re.match(r'\{\s*["}]', start):
        return "JSON objects"
    objects = sum(_is_json(line) and line.lstrip().startswith("{") for line in lines)
    if objects and 2 * objects >= len(are_json):
        number = 1 + next(i for i, line in enumerate(lines) if line.strip() and not _is_json(line))
        raise DataError(f"{path}:{number} is not JSON, but lines next to it are: remove one kind")
    return None


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


def _begins_array(text: str, *, is_whole: bool) -> bool:
    """Returns True for the start of a JSON array, False for text in brackets."""
    rest = text[1:].lstrip()
    if rest.startswith("{") or _is_json(text):
        return True
    try:
        first, end = json.JSONDecoder().raw_decode(rest)
    except RecursionError:
        return True
    except ValueError:
        return False
    is_number = isinstance(first, int | float)  # "[1, 2] say", or too many numbers to see their end
    return rest[end:].lstrip().startswith(",") and not (is_whole and is_number)


def delimiter_of(text: str, *, strict: bool, is_whole: bool) -> str | None:
    """Returns the delimiter of a table with a header; None for other text.

    Args:
        text: The start of a file.
        strict: Require two columns of plain names, and as many cells in each row as in the header.
        is_whole: The last row is complete.
    """
    cell = _PLAIN_CELL if strict else _HEADER_CELL
    for delimiter in "\t,;":
        reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter)
        rows = list(islice(reader, _HEAD_LINES))
        if not is_whole and len(rows) < _HEAD_LINES:
            rows.pop()
        header, *others = list(filter(None, rows)) or [[]]
        is_header = all(map(cell.fullmatch, header)) and len(set(header)) == len(header) > 1
        is_even = all(len(row) == len(header) for row in others)
        if is_header and others and (is_even or not strict):
            return delimiter
    first, _, _ = text.lstrip().partition("\n")
    return "," if not strict and _HEADER_CELL.fullmatch(first.strip()) else None
