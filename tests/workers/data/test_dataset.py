"""Data sets from files, from histograms and without either."""

import pydoc_data.topics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from search_spaces.errors import DataError
from search_spaces.specification.schema import DataSpec
from search_spaces.specification.sections import TrainSpec
from workers.data import text
from workers.data.dataset import load_dataset

TRAIN = TrainSpec(global_batch=4, sequence_length=32)


def _file(path: Path, content: str | bytes, name: str = "a.txt") -> str:
    data = content.encode() if isinstance(content, str) else content
    (path / name).write_bytes(data)
    return str(path / name)


def _words(path: Path, *words: str) -> str:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(("?", *words))}, unk_token="?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    return str(path / "tokenizer.json")


def test_english(tmp_path: Path) -> None:
    file = _file(tmp_path, "\n\n".join(pydoc_data.topics.topics.values()))

    dataset = load_dataset(DataSpec(files=(file,)), TRAIN, 1024)

    assert len(dataset) > 1000
    assert dataset.lengths.min() >= 2
    assert dataset.lengths.max() == 32
    assert 900 < dataset.tokens.max() < 1024
    assert (dataset.offsets[1:] - dataset.offsets[:-1] == dataset.lengths).all()
    assert load_dataset(DataSpec(files=(file,)), TRAIN, 1024) is dataset


@pytest.mark.parametrize(
    ("split", "lengths"), [("paragraph", [4, 2]), ("line", [2, 2, 2]), ("file", [6])]
)
def test_splits(split: Any, lengths: list[int], tmp_path: Path) -> None:
    file = _file(tmp_path, "one two\r\nthree one\r\n \r\n\r\ntwo two\r\n")
    data = DataSpec(files=(file,), split=split, tokenizer=_words(tmp_path, "one", "two", "three"))

    assert load_dataset(data, TRAIN, 4).lengths.tolist() == lengths


def test_tokens_are_the_tokenizers(tmp_path: Path) -> None:
    file = _file(tmp_path, '{"body": "two one"}\n\n{"body": "two two two"}\n', "a.jsonl")
    _words(tmp_path, "one", "two")
    data = DataSpec(files=(file,), field="body", tokenizer=str(tmp_path))

    dataset = load_dataset(data, TRAIN, 10)

    assert [dataset.sample(i).tolist() for i in range(2)] == [[2, 1], [2, 2, 2]]
    assert dataset.mask_token_id == 9


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data = DataSpec(files=(_file(tmp_path, "one two"),), tokenizer=_words(tmp_path, "one", "two"))
    first = load_dataset(data, TRAIN, 4)
    _file(tmp_path, "one two one two")

    assert (first.lengths.tolist(), load_dataset(data, TRAIN, 4).lengths.tolist()) == ([2], [4])


def test_large_files_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {i} über" for i in range(20_000)]
    file = _file(tmp_path, "\n".join(lines))
    monkeypatch.setattr(text, "MOST_BYTES", 64_000)
    monkeypatch.setattr(text, "MOST_SAMPLES", 1000)

    found = text.read_texts(DataSpec(files=(file,), split="line"), 32).texts

    assert len(found) == 1000
    assert set(found) <= set(lines)
    assert found == list(dict.fromkeys(found))
    numbers = [int(line.split()[1]) for line in found]
    assert numbers[0] == 0
    assert numbers[-1] == 19_999
    assert np.histogram(numbers, bins=10)[0].min() > 50


def test_histogram() -> None:
    data = DataSpec(lengths={8: 3.0, 16: 1.0, 4096: 0.001})

    dataset = load_dataset(data, TRAIN, 100)

    assert (dataset.lengths == 8).mean() == pytest.approx(0.75, abs=0.01)
    assert dataset.lengths.max() == 32  # the longest occurs, cut at the sequence length
    assert (dataset.tokens.min(), dataset.tokens.max()) == (1, 98)  # neither padding nor mask
    assert load_dataset(data, TRAIN.model_copy(update={"seed": 1}), 100) is not dataset


def test_fixed_samples_fill_the_sequence_length() -> None:
    dataset = load_dataset(DataSpec(), TrainSpec(global_batch=4, sequence_length=8192), 50_000)

    assert set(dataset.lengths.tolist()) == {8192}
    assert len(dataset) >= 4
    assert dataset.tokens.nbytes <= 2**24


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"text": "one"}\n[1]', r"a\.jsonl:2 holds list, must be a JSON object"),
        ("a.txt", b"fine\nnot \xff fine", r"a\.txt:2 is not UTF-8 text"),
        ("a.txt", " \n\n \n", "no text found"),
        ("a.txt", "a", r"no sample of 2 tokens or more \(samples in total: 1\)"),
    ],
)
def test_says_what_is_wrong(name: str, content: str | bytes, said: str, tmp_path: Path) -> None:
    data = DataSpec(files=(_file(tmp_path, content, name),))

    with pytest.raises(DataError, match=said):
        load_dataset(data, TRAIN, 512)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt is neither a file nor a folder here"):
        load_dataset(DataSpec(files=("nowhere.txt",)), TRAIN, 512)
    with pytest.raises(DataError, match="is a folder without files"):
        load_dataset(DataSpec(files=(str(tmp_path),)), TRAIN, 512)


def test_tokenizers_that_do_not_fit(tmp_path: Path) -> None:
    file = _file(tmp_path, "one two")
    data = DataSpec(files=(file,), tokenizer=_words(tmp_path, "one", "two", "three"))
    with pytest.raises(DataError, match=r"has 4 tokens, the model's vocab_size is 3"):
        load_dataset(data, TRAIN, 3)
    with pytest.raises(DataError, match=r"'no/where' is not a tokenizer\.json"):
        load_dataset(DataSpec(files=(file,), tokenizer="no/where"), TRAIN, 512)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        load_dataset(data, TRAIN, 512)
    with pytest.raises(DataError, match="vocab_size is 100, a byte-level tokenizer needs 258"):
        load_dataset(DataSpec(files=(file,)), TRAIN, 100)


def test_samples_without_anything_to_predict() -> None:
    with pytest.raises(DataError, match="samples of 1 token"):
        load_dataset(DataSpec(lengths={1: 1.0}), TRAIN, 512)
    with pytest.raises(DataError, match="sequence_length is 1"):
        load_dataset(DataSpec(), TrainSpec(global_batch=4, sequence_length=1), 512)
