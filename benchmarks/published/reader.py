"""Reader of the tables of a directory, in the columns that its README describes."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.published.cells import COLUMNS, Row, UnusableRowError
from benchmarks.published.devices import device_of, generation_of, memory_gib
from benchmarks.published.execution import (
    attention_of,
    batch_of,
    checkpoint_of,
    fuses_kernels,
    loss_of,
    offload_of,
)
from benchmarks.published.families import shape_of
from benchmarks.published.layouts import (
    Degrees,
    degrees_of,
    engine_of,
    shards_of,
    splits_sequence,
    zero_stage_of,
)
from benchmarks.published.measures import (
    GIB,
    is_memory_usable,
    is_throughput_usable,
    memory_kind_of,
    oom_of,
    samples_per_second_of,
    varies,
)
from benchmarks.published.methods import method_of
from benchmarks.published.states import states_of
from benchmarks.published.values import Generation, Layout, Run, Shape, Skip, Tables
from search_spaces.errors import UserError

VOCAB_MULTIPLE = 128  # Source: Megatron-LM, --make-vocab-size-divisible-by
SETS_FILE = "ranking_sets.csv"
_CONTRADICTS = r"\bcheck\b|\bimplausible\b"
_EXTRAPOLATED = r"semi-synthetic|extrapolated"


class TablesError(UserError):
    """A directory without tables, or a file that is none."""


def read(directory: Path) -> Tables:
    """All rows of all tables of a directory, in the order of file names and lines.

    Raises:
        TablesError: If it is no directory, has no table, or a table lacks columns.
    """
    if not directory.is_dir():
        raise TablesError(f"{directory} is no directory")
    files = sorted(file for file in directory.glob("*.csv") if file.name != SETS_FILE)
    if not files:
        raise TablesError(f"{directory} has no table: it should hold .csv files")
    runs: list[Run] = []
    skipped: list[Skip] = []
    for file in files:
        for line, row in _rows(file):
            try:
                runs.append(run_of(row, source=file.stem, line=line))
            except UnusableRowError as error:
                skipped.append(Skip(reason=str(error), source=file.stem, line=line))
    return Tables(runs=tuple(runs), skipped=tuple(skipped))


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TablesError(f"{file} lacks columns: {', '.join(missing)}")
            for number, cells in enumerate(reader, start=2):
                yield number, Row({name: cells[name] or "" for name in COLUMNS})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TablesError(f"{file} cannot be read as a table: {error}") from error


def run_of(row: Row, *, source: str, line: int) -> Run:
    """The run that a row tells of.

    Raises:
        UnusableRowError: If the row does not say enough, contradicts itself or lies outside the
            product.
    """
    if row.notes_have(_CONTRADICTS):
        raise UnusableRowError("marked as contradicting itself (CHECK, IMPLAUSIBLE)")
    shape, device = shape_of(row), device_of(row)
    generation = generation_of(device)
    degrees, engine = degrees_of(row), engine_of(row)
    if engine.startswith("megatron"):
        shape = replace(shape, vocab=-(-shape.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)
    method = method_of(row, shape)
    if method.name == "lora" and degrees.tensor > 1:
        raise UnusableRowError("adapters over tensor ranks")
    if shape.experts > 1 and degrees.tensor > 1:
        raise UnusableRowError("mixture of experts over tensor ranks")
    layout = _layout(row, shape, degrees, generation)
    samples = samples_per_second_of(row, shape, layout, method, degrees.gpus)
    peak, oom = row.number("peak_mem_gib"), oom_of(row)
    memory_usable = is_memory_usable(layout, offload_of(row), degrees.stages)
    if samples is None and not peak and oom is not True:
        raise UnusableRowError("no measurement: neither throughput nor memory nor out of memory")
    return Run(
        source=source,
        line=line,
        sets=tuple(row.written("ranking_sets").replace(";", " ").replace(",", " ").split()),
        origin=row.written("source"),
        model=row.written("model"),
        shape=shape,
        parameters=row.number("n_params"),
        device=device,
        generation=generation,
        device_memory_gib=memory_gib(row, device),
        gpus=degrees.gpus,
        method=method.name,
        lora_rank=method.rank,
        lora_targets=method.targets,
        states=states_of(row, engine, generation, method),
        layout=layout,
        stages=degrees.stages,
        varied=varies(row),
        samples_per_second=samples,
        peak_memory_bytes=peak * GIB if peak else None,
        memory_kind=memory_kind_of(row),
        oom=oom,
        throughput_usable=is_throughput_usable(row, samples),
        memory_usable=bool(peak) and memory_usable,
        fit_usable=oom is not None and memory_usable,
        extrapolated=row.notes_have(_EXTRAPOLATED),
    )


def _layout(row: Row, shape: Shape, degrees: Degrees, generation: Generation) -> Layout:
    engine = engine_of(row)
    stage = zero_stage_of(row, engine, generation)
    ranks = degrees.data * degrees.context
    shards = shards_of(row, stage, ranks)
    offload, batch = offload_of(row), batch_of(row, degrees, engine)
    ratio, mode, ratio_stated = checkpoint_of(row)
    attention, attention_stated = attention_of(row, generation, shape.family)
    chunks = row.noted(r"\bvpp?\s?=?\s?(\d+)") or 1
    if layers := row.noted(r"layers per virtual stage l=(\d+)"):
        chunks = max(1, shape.layers // (degrees.pipeline * layers))
    return Layout(
        engine=engine,
        zero_stage=stage,
        shards=shards,
        hybrid=stage > 0 and shards < ranks,
        offload_optimizer=offload.optimizer or row.text("optimizer").startswith("cpu"),
        offload_parameters=offload.parameters,
        offload_activations=offload.activations,
        offload_nvme=offload.nvme,
        checkpoint_ratio=ratio,
        checkpoint_mode=mode,
        checkpoint_stated=ratio_stated,
        attention=attention,
        attention_stated=attention_stated,
        fused_kernels=fuses_kernels(row),
        loss=loss_of(row),
        compile=row.text("compile") == "true",
        tensor=degrees.tensor,
        sequence_parallel=splits_sequence(row, engine, generation, degrees.tensor),
        pipeline=degrees.pipeline,
        chunks=chunks if degrees.pipeline > 1 else 1,
        data=degrees.data,
        context=degrees.context,
        experts=degrees.experts,
        micro_batch=batch.micro,
        accumulation=batch.accumulation,
        global_batch=batch.whole,
        batch_stated=batch.stated,
    )
