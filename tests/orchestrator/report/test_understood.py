"""The block of what was understood: its words for each kind of data."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.report.understood import understood_rows
from search_spaces.facts import (
    BatchFacts,
    Count,
    DataProfile,
    DataReading,
    Fit,
    LengthBin,
    StepFindings,
    TargetRule,
    Understanding,
)
from tests.search_spaces.values import a_cluster, a_model

READING = DataReading(
    forms=("JSON lines",), fields=("messages",), chat="joined", complete=True, samples=9
)
DATA = DataProfile(
    name="a.jsonl",
    digest="",
    files=(),
    tokenizer="",
    samples=9,
    tokens=99,
    histogram=tuple(LengthBin(shortest=n, longest=n, samples=3) for n in (2, 3, 7)),
    median=3,
    reading=READING,
)
LABELS = TargetRule(count=Count.LABELS, key="labels")
LENGTHS = "tokens: shortest 2, median 3, longest 7"


def counted(count: Count) -> TargetRule:
    return TargetRule(count=count, key="mask")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["a.jsonl: JSON lines, messages, joined", f"9 samples; {LENGTHS}"]),
        (
            {"chat": "template", "fields": ("data[].messages",), "forms": ("JSON objects",)}
            | {"samples": 10, "skipped": (("one token", 1),)},
            [
                "a.jsonl: JSON objects, data[].messages, by the tokenizer's chat template",
                f"9 samples; {LENGTHS}",
                "skipped: 1 one token",
            ],
        ),
        (
            {
                "forms": ("paragraph", "CSV"),
                "fields": (),
                "chat": None,
                "complete": False,
                "samples": 20,
                "cut": 1,
                "skipped": (("null", 2), ("one token", 1)),
            },
            [
                "a.jsonl: text, one sample a paragraph and CSV",
                f"9 of 20 samples, from parts of the files, which are large; {LENGTHS}",
                "1 sample cut at train.sequence_length; skipped: 2 null, 1 one token",
            ],
        ),
    ],
)
def test_data_says_how_it_was_read(changes: dict[str, Any], words: list[str]) -> None:
    rows = understood_rows(understood(replace(DATA, reading=replace(READING, **changes))))

    labels = [label for label, _ in rows]
    assert labels == ["data", *[""] * (len(words) - 1), "model", "loss", "machine"]
    assert [text for _, text in rows][: len(words)] == words


def test_what_is_not_read_from_files_is_said_too() -> None:
    generated = understood_rows(understood(replace(DATA, reading=None)))
    own = understood_rows(
        understood(
            None, vocab_size=None, task=None, name="net:build", trainable=4_000_000, base="bf16"
        )
    )

    batches = BatchFacts(source="list in memory", samples=256, entries=(("x", "int64[8..90]"),))
    given = understood_rows(understood(None, vocab_size=None, task=None, batches=batches))

    assert given[:2] == (("data", "list in memory: 256 samples"), ("", "a sample: x int64[8..90]"))

    images = understood(None, vocab_size=None, task="image-classification")

    assert understood_rows(images)[0] == ("data", "random values of the model's shapes")
    assert generated[0][1] == f"random tokens, since data.files is not set; {LENGTHS}"
    assert own[:3] == (
        ("data", "net:build makes its own batches"),
        (
            "model",
            "net:build: GPT2LMHeadModel, 12 blocks, 4.00 M parameters trained, 120 M frozen"
            " and held in bf16",
        ),
        ("loss", "mean over targets of the batch, else labels that are not -100, else samples"),
    )
    assert generated[2:] == (
        ("loss", "mean over labels that count, shifted by one"),
        ("machine", "2 ranks on cpu, each with 4.00 GiB"),
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"fit": Fit.FOUND, "mean_over": (LABELS,)}, ["mean over labels that are not -100"]),
        (
            {"fit": Fit.AMBIGUOUS, "mean_over": (LABELS, TargetRule(count=Count.SAMPLES))},
            ["mean over labels that are not -100; 1 other mean would be the same here"],
        ),
        (
            {"fit": Fit.AMBIGUOUS, "mean_over": (LABELS, *map(counted, Count))[:5]},
            ["mean over labels that are not -100; 4 other means would be the same here"],
        ),
        (
            {"nearest": LABELS, "carries_state": True, "changed_state": tuple("abcd")},
            [
                "no mean: it depends on the other samples of a micro-batch; nearest: mean over"
                " labels that are not -100",
                "training changes state that the loss depends on: a, b, c and 1 more",
            ],
        ),
        (
            {"not_probed": "it is large"},
            [
                "not probed, since it is large; taken as mean over targets of the batch, else"
                " labels that are not -100, else samples"
            ],
        ),
    ],
)
def test_the_loss_is_said_as_it_was_found(step: dict[str, Any], words: list[str]) -> None:
    rows = understood_rows(understood(None, step=StepFindings(**step)))

    assert [text for _, text in rows][2:-1] == words


def understood(data: DataProfile | None, **facts: Any) -> Understanding:
    return Understanding(
        data=data,
        model=a_model(**{"vocab_size": 50257, "task": "causal-lm"} | facts),
        cluster=a_cluster(memory_limit_bytes=4 << 30),
        ranks=2,
    )
