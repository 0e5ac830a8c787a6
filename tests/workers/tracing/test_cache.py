"""Validity of cached footprints."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.costs.footprint import Extent, Footprint, Matmul, Part, Pass, Peak, Variant
from search_spaces.specification.schema import SweepSpec
from workers.models import disk_cache
from workers.tracing.trace import digest_of, load, save

ONE = Extent(fixed=1)
PART = Part(
    trained=Extent(per_sample=0.5, split_fixed=3),
    forward=Pass(
        matmuls=(Matmul(batch=ONE, rows=ONE, columns=ONE, inner=ONE, element_bytes=2, count=3),),
        transient_bytes=Peak(lines=(ONE, Extent(per_sample=2))),
    ),
)
FOOTPRINT = Footprint(
    model="gpt2",
    digest="abc",
    tokens=8,
    depth=0,
    tied_parameters=0,
    variants=(
        Variant(
            attention="sdpa", compute="cast", split="none", embedding=PART, blocks=(), head=PART
        ),
    ),
)


def spec(model: Any = "gpt2", data: Any = None, **train: Any) -> SweepSpec:
    return SweepSpec.model_validate(
        {"model": model, "data": data or {}, "train": {"global_batch": 8, **train}}
    )


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    save(tmp_path / "new", FOOTPRINT)

    assert load(tmp_path / "new", "abc") == FOOTPRINT
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["abc.json"]


def test_what_cannot_be_read_is_traced_anew(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text("{")

    assert load(tmp_path, "abc") is None
    assert load(tmp_path, "other") is None


def test_a_folder_that_cannot_be_written_to_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    save(tmp_path / "file" / "folder", FOOTPRINT)


def test_what_changes_a_footprint_changes_its_name() -> None:
    specs = [
        *(spec(), spec("gpt2-medium"), spec({"name": "gpt2", "config": {"n_layer": 2}})),
        *(spec({"name": "gpt2", "task": "sequence-classification"}), spec(sequence_length=512)),
        *(spec(data={"lengths": {16: 1}}), spec(method="lora")),
    ]
    names = {digest_of(one, device) for one in specs for device in ("cpu", "cuda")}

    assert len(names) == 2 * len(specs)


def test_so_does_a_change_of_the_code_that_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workers" / "tracing").mkdir(parents=True)
    step = tmp_path / "workers" / "tracing" / "step.py"
    monkeypatch.setattr(disk_cache, "_CODE", tmp_path)
    names = []
    for text in ("BYTES = 4\n", "BYTES = 2\n"):
        step.write_text(text)
        disk_cache.code_digest.cache_clear()
        names.append(digest_of(spec(), "cpu"))
    disk_cache.code_digest.cache_clear()

    assert len(set(names)) == 2


def test_what_changes_nothing_keeps_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_of(spec(), "cuda")
    monkeypatch.chdir(tmp_path)
    other = spec(seed=7, learning_rate=1.0, precision="fp32", lora={"rank": 3})
    other = other.model_copy(update={"objective": spec().objective})

    assert digest_of(other, "cuda") == before


def test_the_source_of_a_function_counts_and_that_of_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "package" / "made.py").write_text("from package.net import Net")
    (tmp_path / "package" / "net.py").write_text("class Net: ...")
    before = digest_of(spec("package.made:make"), "cuda")

    (tmp_path / "package" / "net.py").write_text("class Net: pass")

    assert digest_of(spec("package.made:make"), "cuda") != before
