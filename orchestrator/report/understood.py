"""Words for what was understood of a job: the block at the head of check, plan, tune and report."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from orchestrator.report.format import count_words, gib, plural
from search_spaces.facts import (
    TEXT_FORMS,
    Count,
    DataReading,
    Fit,
    LossForm,
    ModelFacts,
    Recomputation,
    StepFindings,
    TargetRule,
    Understanding,
)
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import Task
from search_spaces.specification.sections import QUANTIZED

_MOST_NAMES = 3
_ASSUMED = "mean over targets of the batch, else labels that are not -100, else samples"
_COUNTS: Mapping[Count, str] = packaged_table(__package__, "words.yaml")["target_counts"]
_PLACES = {LossForm.MAPPING: ', under "loss" of a mapping', LossForm.TUPLE: ", of a tuple"}
Rows = Iterator[tuple[str, str]]  # label and words; a further row of the same part has no label
_CHATS = MappingProxyType({"template": ", by the tokenizer's chat template", "joined": ", joined"})
_LOSSES: Mapping[Task | None, str] = packaged_table(__package__, "words.yaml")["task_losses"]


def understood_rows(understanding: Understanding) -> tuple[tuple[str, str], ...]:
    """Returns the rows of the block: data, model, loss and machine."""
    parts = (data_rows, model_rows, loss_rows, machine_rows)
    return tuple(row for part in parts for row in part(understanding))


def data_rows(understanding: Understanding) -> Rows:
    """Yields form, fields, samples and lengths of the data, and what of it is left out."""
    data = understanding.data
    if data is None:
        yield from _batch_rows(understanding.model)
        return
    lengths = (
        f"tokens: shortest {data.histogram[0].shortest:,}, median {data.median:,},"
        f" longest {data.histogram[-1].longest:,}"
    )
    reading = data.reading
    if reading is None:
        yield "data", f"random tokens, since data.files is not set; {lengths}"
        return
    yield "data", f"{data.name}: {_form_words(reading)}"
    one_token = dict(reading.skipped).get("one token", 0)
    thinned = f" of {reading.samples:,}" if reading.samples > data.samples + one_token else ""
    part = "" if reading.complete else ", from parts of the files, which are large"
    yield "", f"{data.samples:,}{thinned} samples{part}; {lengths}"
    cut = f"{plural(reading.cut, 'sample')} cut at train.sequence_length" if reading.cut else ""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in reading.skipped)
    if left_out := "; ".join(filter(None, (cut, f"skipped: {reasons}" if reasons else ""))):
        yield "", left_out


def _batch_rows(model: ModelFacts) -> Rows:
    batches = model.batches
    if batches is None:
        own = f"{model.name} makes its own batches"
        yield "data", "random values of the model's shapes" if model.task else own
        return
    end = "no end is known" if batches.samples is None else plural(batches.samples, "sample")
    yield "data", f"{batches.source}: {end}"
    if batches.entries:
        yield "", "a sample: " + ", ".join(map(" ".join, batches.entries))


def _form_words(reading: DataReading) -> str:
    forms = (f"text, one sample a {form}" if form in TEXT_FORMS else form for form in reading.forms)
    kind = "tokens of " if reading.is_tokens else ""
    fields = f", {kind}{' + '.join(reading.fields)}" if reading.fields else ""
    return " and ".join(forms) + fields + _CHATS.get(reading.chat or "", "")


def model_rows(understanding: Understanding) -> Rows:
    """Yields class, head and parameters of the model."""
    model = understanding.model
    head = f" for {model.task}" if model.task else ""
    frozen = model.parameters - model.trainable_parameters
    counts = f"{count_words(model.trainable_parameters)} parameters trained"
    counts += f", {count_words(frozen)} frozen" if frozen else ""
    if model.base is not None:
        others = " in linear layers of the blocks, else in bf16" if model.base in QUANTIZED else ""
        counts += f" and held in {model.base}{others}"
    counts += "" if model.active is None else f", {count_words(model.active)} active per token"
    name = "" if model.architecture == model.name else f"{model.name}: "
    yield "model", f"{name}{model.architecture}{head}, {plural(model.blocks, 'block')}, {counts}"
    yield from _weight_rows(understanding)


def loss_rows(understanding: Understanding) -> Rows:
    """Yields where the loss is, over what it is a mean, and what of the step changes it."""
    model, step = understanding.model, understanding.model.step
    if step is None:
        yield "loss", _LOSSES.get(model.task, _ASSUMED)
        return
    if step.not_probed:
        why = "a step fails on this machine's CPU, on" if step.fails else "not probed, since"
        yield "loss", f"{why} {step.not_probed}; taken as {_ASSUMED}"
    else:
        yield "loss", f"{_mean_words(step)}{_PLACES.get(step.loss_form, '')}"
    if step.carries_state or step.unsaved_state:
        named = f": {_names(step.changed_state)}" if step.changed_state else ""
        yield "", f"training changes state that the loss depends on{named}"
    if step.recomputation is Recomputation.GRADIENT:
        yield "", "recomputing blocks changes the gradient"
    if step.draws:
        yield "", "draws random numbers, which plans draw differently"


def _mean_words(step: StepFindings) -> str:
    rules = [*map(_rule_words, step.mean_over)]
    match step.fit:
        case Fit.FOUND | Fit.AMBIGUOUS:
            others = plural(len(rules) - 1, "other mean")
            return rules[0] + (f"; {others} would be the same here" if len(rules) > 1 else "")
        case Fit.HIDDEN:
            return "mean with weights that no entry of the batch gives: return them as targets"
        case Fit.PADDING:
            return f"{rules[0] if rules else 'mean'} among samples of one shape; padding changes it"
        case Fit.NOTHING:
            near = "" if step.nearest is None else f"; nearest: {_rule_words(step.nearest)}"
            return f"no mean: it depends on the other samples of a micro-batch{near}"


def _rule_words(rule: TargetRule) -> str:
    return _COUNTS[rule.count].format(key=rule.key)


def _weight_rows(understanding: Understanding) -> Rows:
    """Yields what of the weights is not as usual."""
    model, step = understanding.model, understanding.model.step or StepFindings()
    for names, words in (
        (step.unused or model.unused_weights, "trained, but without a gradient"),
        (step.varying, "with a gradient in some passes only"),
        (model.shared_in_blocks, "shared between blocks"),
        (step.tied, "tied"),
        (model.widened, "weights held in fp32 in place of"),
    ):
        if names:
            yield "", f"{words}: {_names(names)}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def machine_rows(understanding: Understanding) -> Rows:
    """Yields ranks and memory of the machines."""
    cluster = understanding.cluster
    limit = cluster.memory_limit_bytes
    memory = "all of its memory" if limit is None else f"{gib(limit)} GiB"
    device = "the device that tune finds" if cluster.device == "auto" else cluster.device
    nodes = f", {cluster.node_slots} a node" if cluster.node_slots else ""
    ranks = plural(understanding.ranks, "rank")
    yield "machine", f"{ranks} on {device}{nodes}, each with {memory}"
