"""Profile of a data set: its digest, and its histogram of lengths."""

import os
from pathlib import Path

import pytest

from search_spaces.facts import DataProfile
from search_spaces.specification.schema import DataSpec
from search_spaces.specification.sections import TrainSpec
from workers.data.dataset import Dataset, load_dataset, profile

LINES = "\n\n".join(f"sample {number} " + "word " * (number % 40) for number in range(200))


def profiled(
    data: DataSpec, *, sequence_length: int = 64, seed: int = 0
) -> tuple[Dataset, DataProfile]:
    train = TrainSpec(global_batch=4, sequence_length=sequence_length, seed=seed)
    dataset = load_dataset(data, train, 512)
    return dataset, profile(dataset, data)


def test_the_digest_changes_with_what_is_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(LINES)
    data = DataSpec(files=(str(file),))
    digests = [profiled(data)[1].digest, profiled(data, sequence_length=32)[1].digest]
    file.write_text(LINES.replace("sample 7 ", "sample 8 "))
    os.utime(file, (1, 1))
    digests.append(profiled(data)[1].digest)
    digests += [profiled(DataSpec(lengths={8: 1.0}), seed=seed)[1].digest for seed in (0, 1)]

    assert len(set(digests)) == 5
    file.write_text(LINES)
    assert profiled(data)[1].digest == digests[0]
    assert all(len(digest) == 16 for digest in digests)


def test_few_lengths_are_told_one_by_one() -> None:
    dataset, found = profiled(DataSpec(lengths={8: 1.0, 16: 3.0}))

    assert found.name == "synthetic-lengths"
    assert found.files == ()
    assert [(one.shortest, one.longest) for one in found.histogram] == [(8, 8), (16, 16)]
    assert [one.samples for one in found.histogram] == [
        (dataset.lengths == length).sum() for length in (8, 16)
    ]
    assert found.tokens == sum(one.longest * one.samples for one in found.histogram)


def test_many_lengths_are_binned_and_every_sample_is_in_one_bin() -> None:
    lengths = dict.fromkeys(range(2, 300), 1.0)
    dataset, found = profiled(DataSpec(lengths=lengths), sequence_length=300)

    assert 20 < len(found.histogram) <= 32
    assert sum(one.samples for one in found.histogram) == found.samples == len(dataset)
    for one in found.histogram:
        inside = (dataset.lengths >= one.shortest) & (dataset.lengths <= one.longest)
        assert inside.sum() == one.samples


@pytest.mark.parametrize(
    ("names", "name"), [(("a.txt",), "a.txt"), (("a.txt", "b.txt"), "a.txt and 1 more")]
)
def test_files_give_the_name_and_are_told_with_their_folders(
    names: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in names:
        Path(each).write_text(LINES)
    _, found = profiled(DataSpec(files=names))

    assert found.name == name
    assert found.files == tuple(str(tmp_path / each) for each in names)
