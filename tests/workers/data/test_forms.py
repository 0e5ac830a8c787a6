"""Forms of data files: found by content, read as what they are, or refused in a sentence."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from search_spaces.errors import DataError
from search_spaces.specification.schema import DataSpec
from search_spaces.specification.sections import TrainSpec
from workers.data import forms, text
from workers.data.dataset import load_dataset
from workers.data.text import Texts, read_texts

RECORDS = [{"text": text} for text in ("one two", None, " ", "six")]
LINES = "\n".join(map(json.dumps, RECORDS))
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
PARTS = [CHAT[0], {"role": "assistant", "content": [{"type": "text", "text": "yo"}]}]
SHARED = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]


def zst(content: str) -> bytes:
    return bytes(pa.compress(content.encode(), codec="zstd", asbytes=True))


def parquet(rows: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


def arrow(rows: Any, new: Callable[..., Any]) -> bytes:
    sink, table = pa.BufferOutputStream(), pa.Table.from_pylist(rows)
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read(path: Path, content: str | bytes, name: str = "a.txt", **data: Any) -> Texts:
    file = path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_texts(DataSpec(files=(str(file),), **data), 64)


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.json", json.dumps(RECORDS), "JSON array"),
        ("a.txt", json.dumps(RECORDS, indent=2), "JSON array"),
        ("a.json", LINES, "JSON lines"),
        ("a.txt", f"{LINES}\r\n\r\n", "JSON lines"),
        ("a.jsonl", "\ufeff" + LINES, "JSON lines"),
        ("a.jsonl", "\n".join(json.dumps(each, indent=1) for each in RECORDS), "JSON objects"),
        ("a.json", json.dumps({"version": 1, "data": RECORDS}), "JSON objects"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0), "JSON lines"),
        ("a.json", bz2.compress(json.dumps(RECORDS).encode()), "JSON array"),
        ("a.zst", zst(LINES), "JSON lines"),
        ("a.bin", parquet(RECORDS), "parquet"),
        ("a.bin", arrow(RECORDS, ipc.new_stream), "Arrow"),
        ("a.bin", arrow(RECORDS, ipc.new_file), "Arrow"),
    ],
)
def test_records_are_the_same_in_every_form(
    name: str, content: str | bytes, form: str, tmp_path: Path
) -> None:
    found = read(tmp_path, content, name)

    assert (found.texts, found.reading.forms) == (["one two", "six"], (form,))
    assert dict(found.reading.skipped) == {"null": 1, "empty": 1}
    assert [name.removeprefix("data[].") for name in found.reading.fields] == ["text"]


@pytest.mark.parametrize(
    ("name", "content", "form", "texts"),
    [
        ("a.csv", 'text,n\n"one, ""two""\nthree",1\nsix,2\n', "CSV", ['one, "two"\nthree', "six"]),
        ("a.txt", "id\ttext\n1\tone\n2\tsix\n", "CSV", ["one", "six"]),
        ("a.csv", "text;n\none, two;1\nsix;2\n", "CSV", ["one, two", "six"]),
        ("a.csv", "text\none\nsix\n", "CSV", ["one", "six"]),
        ("a.txt", "Oh, one\nAh, two\n", "line", ["Oh, one", "Ah, two"]),
        ("a.txt", "one\ntwo\n\nsix", "paragraph", ["one\ntwo", "six"]),
        ("a.md", "{one}\n\n- {}\n- [1]", "paragraph", ["{one}", "- {}\n- [1]"]),
        ("a.txt", "[Verse 1]\nla", "line", ["[Verse 1]", "la"]),
        ("a.txt", "[1, 2] say so.", "line", ["[1, 2] say so."]),
        ("a.json", '["one", "six"]', "JSON array", ["one", "six"]),
    ],
)
def test_tables_and_text_are_not_taken_for_each_other(
    name: str, content: str, form: str, texts: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, content, name)

    assert (found.texts, found.reading.forms) == (texts, (form,))


@pytest.mark.parametrize(
    ("record", "fields", "wanted"),
    [
        ({"messages": CHAT, "id": "7"}, "messages", None),
        ({"messages": PARTS}, "messages", None),
        ({"conversations": SHARED}, "conversations", None),
        ({"prompt": "hi", "completion": "yo"}, "prompt completion", None),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, "prompt completion", None),
        ({"output": "yo", "instruction": "hi", "input": ""}, "instruction input output", None),
        ({"output": "yo", "instruction": "hi", "id": 3}, "instruction output", None),
        ({"question": "hi", "answer": "yo"}, "question answer", None),
        ({"title": "hi", "body": "yo", "text": "no"}, "title body", ["title", "body"]),
        ({"turns": CHAT, "text": "no"}, "turns", "turns"),
    ],
)
def test_fields_are_found_or_named(
    record: dict[str, Any], fields: str, wanted: Any, tmp_path: Path
) -> None:
    found = read(tmp_path, f"{json.dumps(record)}\n" * 2, field=wanted)

    assert found.texts == ["hi\nyo"] * 2
    assert found.reading.fields == tuple(fields.split())


TOKENS = [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("record", "wanted", "tokens"),
    [
        ({"input_ids": TOKENS, "labels": [-100, 6, 7, 8]}, None, TOKENS),
        ({"input_ids": [*TOKENS, 0, 0], "attention_mask": [1, 1, 1, 1, 0, 0]}, None, TOKENS),
        ({"input_ids": [*range(1, 101)]}, None, [*range(1, 65)]),
        ({"ids": TOKENS, "text": "no"}, "ids", TOKENS),
    ],
)
def test_tokens_in_records_are_taken_as_they_are(
    record: dict[str, Any], wanted: Any, tokens: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "a"
    file.write_bytes(parquet([record] * 3))
    data = DataSpec(files=(str(file),), field=wanted)

    dataset = load_dataset(data, TrainSpec(global_batch=1, sequence_length=64), vocab_size=101)

    assert [dataset.sample(i).tolist() for i in range(len(dataset))] == [tokens] * 3
    assert dataset.reading is not None
    assert dataset.reading.is_tokens
    assert dataset.reading.cut == 3 * (len(record.get("input_ids", "")) > 64)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"input_ids": [1, 101]}], "tokens from 1 to 101, the model's vocab_size is 101"),
        ([{"input_ids": [-1, 5]}], "tokens from -1 to 5"),
        ([{"input_ids": TOKENS, "attention_mask": [1]}], "4 input_ids and an attention_mask of 1"),
        ([{"input_ids": TOKENS, "text": "x"}], r"several forms \(text; input_ids\)"),
        ([{"input_ids": TOKENS}, {"input_ids": "x"}], "hold text and tokens"),
        ([{"input_ids": [TOKENS]}], "no text in field 'input_ids'"),
    ],
)
def test_tokens_that_cannot_be_trained_on_are_refused(
    records: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    file.write_text("\n".join(map(json.dumps, records)))

    with pytest.raises(DataError, match=message):
        load_dataset(
            DataSpec(files=(str(file),)), TrainSpec(global_batch=1, sequence_length=64), 101
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl is a URL"),
        ("shards/*.parquet", "is a pattern"),
        ("user/corpus", r"neither a file nor a folder here; .*save_to_disk"),
    ],
)
def test_what_is_no_file_here_gets_the_way_on(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_texts(DataSpec(files=(name,)), 64)


@pytest.mark.parametrize(
    ("name", "content", "data", "said"),
    [
        ("a", b"PK\x03\x04", {}, "a is a zip archive, of files or of tensors"),
        ("a", b"\x89PNG\r\n", {}, "a is an image"),
        ("a", b"\x80\x04\x95", {}, "a is a pickle"),
        ("a", b"one\0two", {}, "a is binary: byte 3 is null"),
        ("a", "one".encode("utf-16"), {}, "a is UTF-16: convert it with iconv"),
        ("a", "caf\xe9 au".encode("latin-1"), {}, "a:1 is not UTF-8 text"),
        ("a", "<!DOCTYPE html>", {}, "a is HTML"),
        ("a", "version https://git-lfs.github.com/spec/v1", {}, "run git lfs pull"),
        ("a", gzip.compress(b"x" * 999, mtime=0)[:-9], {}, "a cannot be unpacked"),
        ("a", b"PAR1abc", {}, "a cannot be read"),
        ("a.jsonl", "some prose", {}, "a.jsonl is not jsonl: it begins with 'some prose'"),
        ("a.csv", "some prose,1\n2,3", {}, "a.csv is not a table with a header"),
        ("a.csv", "text,n\none, two,3\n", {}, "a.csv:2 has 3 cells, the header has 2"),
        ("a", '[{"text": "a"},\n {"text": ', {}, "a:2 is not valid JSON"),
        ("a", '[{"text": "a"}]\nmore', {}, "a:1 goes on after the end of its JSON array"),
        ("a", '{"text": "a"\n{"text": "b"}', {}, "a:1 is not valid JSON"),
        ("a", '# hi\n{"text": "a"}\n{"text": "b"}', {}, "a:1 is not JSON, but lines next"),
        ("a", "[1, 2]\n[3]", {}, "a:1 holds list, must be a JSON object"),
        pytest.param("a", "[" * 9_999, {}, "a:1 is not valid JSON", id="deep"),
        ("a", '{"body": "a", "id": "3"}', {}, "a:1 has the fields body, id: set data.field"),
        ("a", '{"a": [{"b": "c"}], "d": [{"e": "f"}]}', {}, "a:1 has the fields a, d: set"),
        ("a", '{"text": "a", "messages": []}', {}, "several forms (text; messages)"),
        ("a", '{"text": 3}', {"field": "text"}, "a:1 has no text in field 'text'"),
        ("a", '{"a": "b"}', {"field": ["a", "z"]}, "a: no record has the field z"),
        ("a", '{"messages": [{"speaker": "x"}]}', {}, "a:1 has a message with speaker"),
        ("a", '{"messages": [{"role": "x", "content": [{"image": 1}]}]}', {}, "only text is read"),
    ],
)
def test_other_forms_are_refused(
    name: str, content: str | bytes, data: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refusal:
        read(tmp_path, content, name, **data)

    assert said in str(refusal.value)


def test_a_folder_is_its_files_or_a_saved_data_set(tmp_path: Path) -> None:
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    (saved / "train").mkdir(parents=True)
    plain.mkdir()
    (saved / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (saved / "train" / "state.json").write_text("{}")
    (saved / "train" / "data-00000-of-00001.arrow").write_bytes(arrow(RECORDS, ipc.new_stream))
    for name, word in (("b.jsonl", "two"), ("a.jsonl", "one"), (".hidden", "no")):
        (plain / name).write_text(json.dumps({"text": word}))
    folders = DataSpec(files=(str(plain), str(saved)))

    assert read_texts(folders, 64).texts == ["one", "two", "one two", "six"]
    (plain / "README.md").write_text("prose")
    with pytest.raises(DataError, match=r"several forms, such as README\.md and b\.jsonl"):
        read_texts(folders, 64)


def test_the_tokenizers_chat_template_writes_messages(tmp_path: Path) -> None:
    words = {word: i for i, word in enumerate(("?", "[", "]", "user", "assistant", "hi", "yo"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="? $A", special_tokens=[("?", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "? {% for m in messages %}{{ '[ ' ~ m.role ~ ' ] ' ~ m.content ~ ' ' }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    (tmp_path / "data").mkdir()
    chat = json.dumps([{"prompt": SHARED[:1], "completion": SHARED[1:]}])
    (tmp_path / "data" / "a.json").write_text(chat)
    data = DataSpec(files=(str(tmp_path / "data"),), tokenizer=str(tmp_path / "tokenizer.json"))
    train = TrainSpec(global_batch=1, sequence_length=8)

    found = load_dataset(data, train, 7)

    assert found.sample(0).tolist() == [0, 1, 3, 2, 5, 1, 4, 2]
    assert found.reading is not None
    assert (found.reading.chat, found.reading.cut) == ("template", 1)
    (tmp_path / "data" / "a.json").write_text(json.dumps(2 * json.loads(chat)))
    assert len(load_dataset(data, train, 7)) == 2
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match=r"a\.json:1: the tokenizer's chat template fails: roles"):
        load_dataset(data, train, 7)


def table(rows: list[dict[str, str]]) -> str:
    return "id,text\n" + "".join(f'"{i}\n",{row["text"]}\n' for i, row in enumerate(rows))


@pytest.mark.parametrize("pack", [json.dumps, parquet, table])
def test_a_large_file_is_read_from_its_start(
    pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (forms, text, "workers.data.tables"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.WHOLE_BYTES", 20_000)

    found = read(tmp_path, pack([{"text": f"number {i}"} for i in range(9_999)]))

    assert not found.reading.complete
    assert 500 < len(found.texts) < 2_000
    assert found.texts == [f"number {i}" for i in range(len(found.texts))]
