"""`plimsoll plan`: real traces of small models, real files, every error."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.exit_codes import ExitCode
from tests.orchestrator.cli.test_app import run

TINY = """\
model:
  name: llama-3.2-1b
  config: {hidden_size: 64, intermediate_size: 160, num_hidden_layers: 4, vocab_size: 500,
    num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}
cluster: {device: cuda, workers: 4, gpu: H100}
train: {global_batch: 32, sequence_length: 128}
"""
COLUMNS = 110


def planned_in(file: Path) -> Any:
    """Returns the report in a file, with its fields as attributes."""
    document = json.loads(file.read_text("utf-8"), object_hook=lambda one: SimpleNamespace(**one))
    return document.result


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of footprints, shared by the tests of this module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def spec_path(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A specification of a small model in the current directory, without the user's own files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = Path("tiny.yaml")
    path.write_text(TINY, encoding="utf-8")
    return path


def test_answers_first_and_writes_both_files(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", spec_path) in (0, None)

    written = capsys.readouterr().out
    understood, answer = (" ".join(part.split()) for part in written.split("\n\n")[:2])
    assert "data random tokens, since data.files is not set" in understood
    model = r"LlamaForCausalLM of \d+ k parameters \(llama-3.2-1b, changed by model.config\)"
    assert re.match(rf"{model} on 4 x H100-80-SXM: yes, about [\d,.]+ samples/s \(", answer)
    assert "limited by" in answer
    assert all(len(line) <= COLUMNS for line in written.splitlines() if "written:" not in line)
    assert "\x1b" not in written
    folder = Path("plimsoll-runs", "tiny")
    planned = planned_in(folder / "plan.json")
    assert planned.tokens == 128
    assert planned.global_batch == 32
    assert f"{folder / 'plan.json'} and {folder / 'plan.html'}" in written


@pytest.mark.thorough
def test_it_imports_no_framework_nor_does_check(spec_path: Path) -> None:
    """The model's code runs in another process, and torch takes longer than all forecasts."""
    script = (
        "import sys\nfrom orchestrator.cli import main\n"
        "for command in 'check', 'plan':\n"
        f"    try:\n        main([command, '{spec_path}', '--json'])\n"
        "    except SystemExit as ended:\n"
        "        heavy = {'torch', 'transformers', 'ray', 'mlflow'}\n"
        "        print(command, ended.code, sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=800
    )

    assert ended.stderr.splitlines()[-2:] == ["check 0 []", "plan 0 []"]


def test_the_page_needs_no_network(spec_path: Path) -> None:
    assert run("plan", spec_path, "--out", "page.html", "--out", "deep/plan.json") in (0, None)

    page = Path("page.html").read_text("utf-8")
    ours = page.partition("<script>")[0] + page.rpartition("<script>")[2]
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", ours)
    assert "@import" not in ours
    assert Path("deep/plan.json").exists()
    data = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert {"speed-memory", "memory", "time"} <= set(json.loads(data.group(1)))


def test_compares_counts_and_prices(spec_path: Path) -> None:
    asked = ("--gpus", "4,1,2,3", "--price", "2.5", "--top", "3")
    assert run("plan", spec_path, *asked) in (0, None)

    planned = planned_in(Path("plimsoll-runs/tiny/plan.json"))
    assert planned.recommendation.ranks == 4
    assert [size.ranks for size in planned.device_counts] == [1, 2, 3, 4]
    assert planned.price_per_hour == 2.5
    assert len(planned.recommendation.best) <= 3
    (three,) = (size for size in planned.device_counts if size.ranks == 3)
    assert three.refusals


@pytest.mark.thorough
def test_explains_by_number_and_file(spec_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", spec_path, "--plan", "2") in (0, None)
    by_number = capsys.readouterr().out
    planned = planned_in(Path("plimsoll-runs/tiny/plan.json"))
    second = planned.recommendation.best[1]
    Path("plan.json").write_text(json.dumps(vars(second.plan)), encoding="utf-8")

    assert run("plan", spec_path, "--plan", "plan.json") in (0, None)
    by_file = capsys.readouterr().out

    def arithmetic(text: str) -> str:
        return text.partition("Time per step")[2].partition("written:")[0]

    assert "matmuls" in arithmetic(by_number)
    assert arithmetic(by_number) == arithmetic(by_file)


@pytest.mark.thorough
def test_where_nothing_fits_it_says_what_would(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text(TINY.replace("workers: 4", "workers: 4, memory_gib: 0.01"), "utf-8")

    assert run("plan", spec_path) == 1

    written = capsys.readouterr()
    assert ": no plan fits; the closest plan (" in written.err
    assert "--gpus and --gpu forecast more or other devices" in written.err
    assert "Traceback" not in written.err
    assert Path("plimsoll-runs/tiny/plan.json").exists()


@pytest.mark.cases_by_default(5)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "H1000"), "the nearest are"),
        (("--gpus", "8,x"), "--gpus is '8,x': must be whole numbers above 0"),
        (("--gpus", "7"), "train.global_batch is 32: no plan can meet it"),
        (("--plan", "99"), "the table has plans 1 to"),
        (("--plan", "feedfeedfeed"), "give a number of the table, or a JSON file"),
        (("--records", "nobody"), "neither a specification nor a study"),
        (("--out", "plan.txt"), "--out plan.txt: must end with .html"),
        (("--out", "tiny.yaml/plan.json"), "tiny.yaml/plan.json cannot be written"),
        (("--plan", "none.json"), "none.json cannot be read"),
    ],
)
def test_errors_are_sentences(
    arguments: tuple[str, ...], words: str, spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", spec_path, *arguments) == 2

    written = capsys.readouterr()
    assert words in " ".join(written.err.split())
    assert "Traceback" not in written.err


def test_a_model_that_cannot_be_traced_says_which_operator(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("picky_model.py").write_text(
        "import torch\n"
        "class Picky(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(8, 8)\n"
        "    def forward(self, x):\n"
        "        kept = torch.nonzero(self.layer(x))\n"
        "        return self.layer(x).mean() + 0 * kept.shape[0]\n"
        "def build():\n"
        "    return Picky(), lambda numbers: {'x': torch.zeros(len(numbers), 8)}\n",
        encoding="utf-8",
    )
    spec_path.write_text(
        "model: picky_model:build\n"
        "cluster: {device: cuda, workers: 1, gpu: H100}\n"
        "train: {global_batch: 4, sequence_length: 8}\n",
        encoding="utf-8",
    )

    assert run("plan", spec_path) == 2

    written = capsys.readouterr().err
    assert "nonzero" in written
    assert "Traceback" not in written


def test_plans_for_this_cpu(spec_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_path.write_text(
        TINY.replace("device: cuda, workers: 4, gpu: H100", "device: cpu, workers: 2").replace(
            "sequence_length: 128", "sequence_length: 128, precision: fp32"
        ),
        encoding="utf-8",
    )

    assert run("plan", spec_path) in (0, None)

    assert "on 2 x cpu: yes" in capsys.readouterr().out


def test_a_device_of_the_users_own(spec_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = Path("config/plimsoll/devices")
    devices.mkdir(parents=True)
    (devices / "mine.yaml").write_text(
        "name: mine\nbased_on: H100-80-SXM\nmemory_bytes: 17179869184\n", encoding="utf-8"
    )

    assert run("plan", spec_path, "--gpu", "mine", "--gpus-per-node", "2") in (0, None)

    planned = planned_in(Path("plimsoll-runs/tiny/plan.json"))
    assert planned.device == "mine"
    assert planned.limit_bytes == 17179869184
    assert planned.node_devices == 2
    assert "on 4 x mine" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("base", "zero_stage", "weights_gib"),
    [("nf4", 0, 9.5), ("bf16", 3, 0.0)],  # by hand; FSDP2 offloads, or keeps half of 27.8
)
def test_adapters_of_14_billion_weights_fit_two_cards_of_24_gb(
    base: str, zero_stage: int, weights_gib: float, spec_path: Path
) -> None:
    """The shape of Qwen2.5-14B: 13.2e9 numbers in linear layers of blocks, 1.56e9 elsewhere."""
    sizes = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48}
    heads = {"num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064}
    config = {"model_type": "qwen2", "tie_word_embeddings": False, **sizes, **heads}
    Path("qwen").mkdir()
    Path("qwen", "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec_path.write_text(
        "model: ./qwen\ncluster: {device: cuda, workers: 2, gpu: RTX 4090}\n"
        "train: {global_batch: 16, sequence_length: 1024, method: lora,"
        f" lora: {{rank: 16, base: {base}}}}}\n",
        encoding="utf-8",
    )

    assert run("plan", spec_path) in (0, None)

    best = planned_in(Path("plimsoll-runs/tiny/plan.json")).recommendation.best[0]
    assert best.plan.zero_stage == zero_stage
    assert best.fits > 0.8
    assert dict(best.held_bytes)["weights"] / 2**30 == pytest.approx(weights_gib, abs=0.1)


def test_plans_the_longest_sequence_that_fits(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each length's answer is that of a plan for it."""
    small = ("--set", "cluster.memory_gib=1.5", "--set", "train.sequence_length=32768")
    assert run("plan", spec_path, "--longest", "--out", "plan.json", *small) in (0, None)

    written = capsys.readouterr().out
    planned = planned_in(Path("plan.json"))
    fitting = [length.tokens for length in planned.lengths if length.best]
    others = [length.tokens for length in planned.lengths if not length.best]
    assert planned.tokens == max(fitting)
    assert max(fitting) < min(others) <= 1.25 * max(fitting)
    assert f"{planned.tokens:,} tokens are the longest that fit; about" in " ".join(written.split())
    assert f"{min(others):,} tokens: no plan fits" in written
    for tokens, code in ((max(fitting), 0), (min(others), ExitCode.NOTHING_FOUND)):
        again = ("--set", f"train.sequence_length={tokens}", "--out", f"{tokens}.json")
        assert (run("plan", spec_path, *small[:2], *again) or 0) == code
    best = planned_in(Path(f"{max(fitting)}.json")).recommendation.best[0]
    assert best.key == planned.recommendation.best[0].key


@pytest.mark.thorough
def test_the_longest_sequence_of_learned_positions(spec_path: Path) -> None:
    """GPT-2 has positions for 1,024 tokens."""
    spec_path.write_text(
        "{model: gpt2, cluster: {gpu: H100, workers: 1}, objective: {metric: sequence_length},"
        " train: {global_batch: 4, sequence_length: 512}}"
    )
    assert run("plan", spec_path, "--out", "plan.json") in (0, None)

    lengths = {length.tokens: length for length in planned_in(Path("plan.json")).lengths}
    assert max(tokens for tokens, length in lengths.items() if length.best) == 1024
    assert "gpt2 has learned positions for" in lengths[2048].refusal


def test_the_longest_sequence_needs_samples_that_grow(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text("{model: vit-base, cluster: {gpu: H100}, train: {global_batch: 8}}")

    assert run("plan", spec_path, "--longest") == ExitCode.USER_ERROR
    assert "it must grow with it" in capsys.readouterr().err
