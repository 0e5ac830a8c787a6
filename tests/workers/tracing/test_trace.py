"""Footprints compared with published numbers and with torch's own trackers."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from search_spaces.costs.footprint import Compute, Footprint, Part, Split, Variant
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import ModelError
from search_spaces.plan import Attention
from search_spaces.specification.schema import SweepSpec
from tests.workers.parallel.split_models import split_spec
from tests.workers.tracing.footprint_check import check, flops
from tests.workers.values import LLAMA, odd_model
from workers.tracing.trace import trace

TOKENS = 64
# torch's tracker counts a few scalars otherwise; nothing else differs
TOLERANCE = 0.001
BERT = {
    "name": "bert-large",
    "task": "masked-lm",
    "config": {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "vocab_size": 512,
    },
}
GPT2 = {
    "name": "gpt2",
    "config": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 512},
}
STACKED = {"name": "tests.workers.tracing.models:stacked"}
WIDTH, HEADS = 64, 8


def spec_of(model: dict[str, Any], **train: Any) -> SweepSpec:
    return SweepSpec.model_validate(
        {"model": model, "train": {"global_batch": 8, "sequence_length": TOKENS, **train}}
    )


def traced(
    spec: SweepSpec,
    cache: Path,
    attention: Attention = "sdpa",
    compute: Compute = "cast",
    split: Split = "none",
) -> Footprint:
    return trace(spec, [VariantKey(attention, compute, split)], cache=cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of footprints, in which tests find what others traced."""
    return tmp_path_factory.mktemp("footprints")


def variant_of(
    spec: SweepSpec, cache: Path, attention: Attention = "sdpa", split: Split = "none"
) -> Variant:
    return traced(spec, cache, attention, split=split).variant(attention, "cast", split)


def block_of(
    spec: SweepSpec, cache: Path, attention: Attention = "sdpa", split: Split = "none"
) -> Part:
    """Returns the part of all blocks except the first."""
    return variant_of(spec, cache, attention, split).blocks[-1].part


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "train", "compute"),
    [
        (GPT2, {}, "autocast"),
        (LLAMA, {}, "cast"),
        (BERT, {}, "autocast"),
        (STACKED, {}, "cast"),
        *((LLAMA, {"method": "lora"}, compute) for compute in ("cast", "autocast")),
    ],
)
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:Module is None")
def test_the_whole_model_sharded_is_as_torch_tracks_it(
    model: dict[str, Any], train: dict[str, Any], compute: Compute, tmp_path: Path
) -> None:
    """The check runs at a micro-batch that was not traced, and at full depth."""
    checked = check(spec_of(model, **train), compute=compute, micro_batch=7, cache=tmp_path)

    assert checked.saved_bytes == pytest.approx(checked.tracked_saved_bytes, rel=TOLERANCE)
    assert checked.peak_bytes == pytest.approx(checked.tracked_peak_bytes, rel=0.02)
    assert checked.flops == checked.tracked_flops


@pytest.mark.thorough
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:Module is None")
def test_an_encoder_and_a_decoder_are_as_torch_tracks_them(
    attention: Attention, tmp_path: Path
) -> None:
    spec = split_spec("t5", tmp_path, num_layers=4, num_decoder_layers=3, dropout_rate=0.1)
    spec = spec.model_copy(update={"data": spec_of(LLAMA).data})

    checked = check(spec, attention=attention, micro_batch=7, cache=tmp_path)

    assert checked.saved_bytes == pytest.approx(checked.tracked_saved_bytes, rel=TOLERANCE)
    assert checked.peak_bytes == pytest.approx(checked.tracked_peak_bytes, rel=0.02)
    assert checked.flops == checked.tracked_flops


def test_a_block_saves_what_korthikanti_et_al_say(cache: Path) -> None:
    """arXiv:2205.05198, equation 1: s b h (34 + 5 a s / h) bytes, with dropout in 16 bits.

    The means and deviations of the two norms come on top; the paper leaves them out.
    """
    found = block_of(spec_of(BERT), cache, "eager").saved_bytes

    statistics = 2 * 2 * TOKENS * 4
    published = TOKENS * WIDTH * (34 + 5 * HEADS * TOKENS / WIDTH)
    assert found.per_sample == pytest.approx(published, abs=statistics)
    assert found.fixed == 0


def test_tensor_ranks_split_what_korthikanti_et_al_say(cache: Path) -> None:
    """Equation 2: s b h (10 + 24 / t + 5 a s / (h t)); the first term is not split."""
    found = block_of(spec_of(BERT), cache, "eager", split="tensor").saved_bytes

    statistics = 2 * 2 * TOKENS * 4
    whole, split = 10 * TOKENS * WIDTH, 24 * TOKENS * WIDTH + 5 * HEADS * TOKENS**2
    assert found.per_sample == pytest.approx(whole, abs=statistics)
    assert found.split_per_sample == pytest.approx(split, abs=statistics)


def test_with_the_sequence_split_all_is_split_but_gathered_inputs(cache: Path) -> None:
    """Equation 4 divides all by t; here the inputs of both split layers stay gathered.

    The paper gathers them again in backward, and keeps slices of them. Here they take
    2 s b h bytes each, and no slice is kept.
    """
    found = block_of(spec_of(BERT), cache, "eager", split="sequence").saved_bytes

    statistics = 2 * 2 * TOKENS * 4
    gathered = 2 * 2 * TOKENS * WIDTH
    published = TOKENS * WIDTH * (34 + 5 * HEADS * TOKENS / WIDTH)
    assert found.per_sample == pytest.approx(gathered, abs=statistics)
    assert found.split_per_sample == pytest.approx(published - gathered, abs=statistics)


def test_a_token_takes_six_flops_per_weight_and_its_attention(cache: Path) -> None:
    """Kaplan et al. 2020 (arXiv:2001.08361), section 2.1; backward takes twice the forward."""
    spec = spec_of({"name": "llama-3-8b"})
    variant = variant_of(spec, cache, "eager")
    matrices = 8_030_261_248 - 128_256 * 4096 - 65 * 4096  # words are looked up, norms multiply

    counted = flops(variant, 1)

    attention = 3 * 4 * 32 * TOKENS * 4096
    assert counted == TOKENS * (6 * matrices + attention)


def test_the_head_keeps_its_logits_in_fp32(cache: Path) -> None:
    """Cross-entropy saves 4 bytes for each word of each token; backward takes twice as much."""
    head = variant_of(spec_of(LLAMA), cache).head
    logits = 4 * TOKENS * 500

    assert logits < head.saved_bytes.per_sample < 1.3 * logits
    assert head.backward.transient_bytes.at(64) == pytest.approx(64 * 2 * logits, rel=0.05)


@pytest.mark.parametrize(
    ("name", "parameters", "tied"),
    [
        ("llama-3-8b", 8_030_261_248, 0),  # model card
        pytest.param("llama-3.1-405b", 405_853_388_800, 0, marks=pytest.mark.thorough),
        ("gpt2", 124_439_808, 50257 * 768),
    ],
)
def test_parts_hold_the_published_parameters(
    name: str, parameters: int, tied: int, cache: Path
) -> None:
    footprint = traced(spec_of({"name": name}), cache)

    variant = footprint.variant("sdpa", "cast", "none")
    blocks = sum(len(kind.indices) * kind.part.trained.at(1) for kind in variant.blocks)
    ends = variant.embedding.trained.at(1) + variant.head.trained.at(1)
    assert blocks + ends - footprint.tied_parameters == parameters
    assert footprint.tied_parameters == tied
    assert sum(len(kind.indices) for kind in variant.blocks) == footprint.depth


def test_adapters_are_what_is_trained(cache: Path) -> None:
    """Hu et al. 2021 (arXiv:2106.09685): rank x (inputs + outputs) for each adapted layer."""
    width, inner, grouped = 64, 128, 32
    sizes = [(width, width)] * 2 + [(width, grouped)] * 2 + [(width, inner)] * 3

    part = block_of(spec_of(LLAMA, method="lora"), cache)

    assert part.trained.at(1) == 8 * sum(map(sum, sizes))
    assert part.frozen.at(1) == sum(a * b for a, b in sizes) + 2 * width


def test_quantized_weights_are_held_packed_and_unpacked_in_each_pass(cache: Path) -> None:
    """Seven projections in 4.127 bits a number, two bytes for each number that is unpacked."""
    held, packed = (
        block_of(spec_of(LLAMA, method="lora", lora={"base": base}), cache)
        for base in ("bf16", "nf4")
    )
    numbers, largest = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128, 64 * 128

    assert packed.quantized_bytes.at(1) == pytest.approx(numbers * 4.127 / 8)
    assert (held.frozen.at(1) - packed.frozen.at(1), held.quantized_bytes.at(1)) == (numbers, 0)
    for one, other in ((held.forward, packed.forward), (held.backward, packed.backward)):
        unpacked = other.traffic_bytes.at(8) - one.traffic_bytes.at(8)
        assert unpacked == pytest.approx(numbers * (4.127 / 8 + 2))
        assert other.transient_bytes.at(8) - one.transient_bytes.at(8) == 2 * largest
        assert other.launches - one.launches == 7


def test_what_selective_recomputation_keeps(cache: Path) -> None:
    """Results of the seven projections, and of attention with its row sums; two bytes each."""
    part = block_of(spec_of(LLAMA), cache)
    projections = 2 * TOKENS * (64 + 2 * 32 + 64 + 2 * 128 + 64)
    kernel = 2 * TOKENS * 64 + 4 * 4 * TOKENS

    assert part.kept_bytes.per_sample == pytest.approx(projections + kernel, abs=64)
    assert part.input_bytes.per_sample == 2 * TOKENS * 64
    assert not part.recomputed.matmuls
    assert not part.recomputed.attentions
    assert part.recomputed.launches == part.forward.launches - 8


def test_tensor_ranks_send_activations_twice_in_each_direction(cache: Path) -> None:
    """Shoeybi et al. 2019 (arXiv:1909.08053), section 3: two all-reduces forward, two backward."""
    part = block_of(spec_of(BERT), cache, "eager", "tensor")

    for direction in (part.forward, part.backward):
        assert direction.exchanges == 2
        assert direction.exchanged_bytes.per_sample == 2 * 2 * TOKENS * WIDTH


def test_with_the_sequence_split_ranks_send_as_much_in_more_pieces(cache: Path) -> None:
    """Korthikanti et al., section 4.2.2: an all-reduce becomes a gather and a scatter.

    Each counts the whole activations once; backward gathers both inputs' gradients' parts too.
    """
    part = block_of(spec_of(BERT), cache, "eager", "sequence")

    assert part.forward.exchanges == 4
    assert part.forward.exchanged_bytes.per_sample == 4 * 2 * TOKENS * WIDTH
    assert part.forward.exchanged_bytes.split_per_sample == 0


def test_a_footprint_says_which_shorter_samples_there_are(cache: Path) -> None:
    alike = spec_of(GPT2)
    varied = SweepSpec.model_validate(
        {**alike.model_dump(mode="json"), "data": {"lengths": {16: 1, TOKENS: 1}}}
    )

    one, two = traced(alike, cache), traced(varied, cache)

    assert (one.varied, one.lengths, one.mean_tokens) == (False, (), TOKENS)
    assert (two.varied, {*two.lengths}, two.tokens) == (True, {16, TOKENS}, TOKENS)
    assert two.mean_tokens == pytest.approx((16 + TOKENS) / 2, rel=0.02)
    assert two.row_tokens == alike.train.sequence_length


@pytest.mark.parametrize(
    ("function", "operator", "remedy"),
    [
        ("selects", "aten.nonzero", "torch.library.custom_op"),
        ("peeks", "aten._local_scalar_dense", "torch.library.custom_op"),
        ("own_operator", "plimsoll_tests.twice", 'register_fake("plimsoll_tests::twice")'),
    ],
)
def test_what_cannot_be_traced_is_named_with_its_remedy(
    function: str, operator: str, remedy: str, tmp_path: Path
) -> None:
    model = {"name": f"tests.workers.tracing.models:{function}"}

    with pytest.raises(ModelError) as caught:
        traced(spec_of(model), tmp_path)

    assert operator in str(caught.value)
    assert remedy in str(caught.value)


def test_a_model_that_raises_is_told_by_what_it_raises(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its code raises LookupError: the sea is rough today"):
        traced(spec_of(odd_model("raises")), tmp_path)


def test_a_model_that_cannot_be_split_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tensor-parallel plan"):
        traced(spec_of(STACKED), tmp_path, split="tensor")


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    before = torch.get_rng_state()

    traced(spec_of(LLAMA), tmp_path, split="sequence")

    assert not dist.is_initialized()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.ones(1).sum().item() == 1


def test_a_cached_footprint_is_read_without_torch(tmp_path: Path) -> None:
    spec = spec_of(LLAMA)
    made = traced(spec, tmp_path)
    script = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "from search_spaces.specification.schema import SweepSpec\n"
        "from search_spaces.costs.plan_encoding import VariantKey\n"
        "from workers.tracing.trace import trace\n"
        f"spec = SweepSpec.model_validate_json({spec.model_dump_json()!r})\n"
        "wanted = [VariantKey('sdpa', 'cast', 'none')]\n"
        f"found = trace(spec, wanted, cache=Path({str(tmp_path)!r}))\n"
        "print(json.dumps([found.digest, 'torch' in sys.modules]))\n"
    )

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert json.loads(told.stdout) == [made.digest, False]


def test_variants_gather_in_one_file(tmp_path: Path) -> None:
    first = traced(spec_of(LLAMA), tmp_path)
    both = traced(spec_of(LLAMA), tmp_path, "eager")

    assert both.variants[:1] == first.variants
    assert [variant.attention for variant in both.variants] == ["sdpa", "eager"]
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert traced(spec_of(LLAMA), tmp_path) == both


def test_flash_attention_is_traced_as_sdpa(cache: Path) -> None:
    flash = variant_of(spec_of(LLAMA), cache, "flash_attention_2")
    fused = variant_of(spec_of(LLAMA), cache)

    assert dataclasses.replace(flash, attention="sdpa") == fused


@pytest.mark.filterwarnings("error:Accessing the data pointer of FakeTensor")
def test_no_reference_to_a_storage_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gives its storage back: with a copy, twice, which corrupted the heap."""

    def refuse(self: StorageWeakRef, memo: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(StorageWeakRef, "__deepcopy__", refuse, raising=False)
    model = {"name": "tests.workers.tracing.models:normalised"}

    assert traced(spec_of(model), tmp_path, compute="fp32").depth == 0
