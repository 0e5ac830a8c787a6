"""The command line as a whole: a user's error is a message, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group

from orchestrator.cli import main
from orchestrator.cli.app import app
from search_spaces.safety.files import packaged_table

LEAST = "model: gpt2\ntrain: {global_batch: 32}\n"
HEAVY = ("torch", "ray", "mlflow", "transformers", "optuna", "numpy")


def run(*arguments: str | Path) -> int | str | None:
    """Returns the exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


@pytest.fixture
def spec_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A specification, the only file in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = Path("demo.yaml")
    path.write_text(LEAST, encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["check", "tune", "report", "ui"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist; `plimsoll init` writes one"),
        ("model: [", "line 1, column 9"),
        ("model: gpt2\ntrain: {globl_batch: 3}", "did you mean global_batch?"),
    ],
)
def test_faults_of_a_specification(
    command: str,
    content: str | None,
    words: str,
    spec_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec_path.unlink()
    if content is not None:
        spec_path.write_text(content, encoding="utf-8")

    assert run(command, spec_path) == 2

    written = capsys.readouterr()
    assert written.err.startswith("demo.yaml: ")
    assert words in written.err
    assert "Traceback" not in written.err
    assert not written.out


def test_all_faults_reach_the_user_unbroken(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text(
        "model: gpt2\ntrain: {global_batch: 0, precision: [bf16]}", encoding="utf-8"
    )

    assert run("check", spec_path) == 2

    first, *faults = capsys.readouterr().err.splitlines()
    assert first == "demo.yaml: 2 faults"
    assert faults[0].startswith("  - train.global_batch is 0: must be 1 or more")
    assert faults[1] == '  - train.precision is ["bf16"]: must be fp32, bf16 or fp16'  # no markup


def test_help_lists_every_command_and_version_tells_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in ("init", "check", "tune", "trial", "report", "ui", "models"):
        assert f" {command} " in out

    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("plimsoll ")


def test_each_argument_has_a_text_and_each_text_an_argument() -> None:
    texts = packaged_table("orchestrator.cli", "help.yaml")
    given = {
        name: {one.name for one in command.params if getattr(one, "help", None)}
        for name, command in get_group(app).commands.items()
    }
    all_given = set[str]().union(*given.values())
    missing = [
        (name, one.name)
        for name, command in get_group(app).commands.items()
        for one in command.params
        if not getattr(one, "help", None)
    ]

    assert not missing
    assert texts.pop("shared").keys() <= all_given
    assert {name for name, own in texts.items() if not own.keys() <= given[name]} == set()


def test_help_and_faults_import_nothing_heavy(tmp_path: Path) -> None:
    script = f"""
import sys
from orchestrator.cli import main
for arguments in (
    ["--help"],
    ["tune", "missing.yaml"],
    ["trial", "missing.yaml", "--plan", "x"],
    ["check", "missing.yaml"],
    ["check", "--unknown"],
    ["models"],
    ["schema"],
):
    try:
        main(arguments)
    except SystemExit:
        pass
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600
    )

    assert ended.stderr.splitlines()[-1] == "[]"


def test_init_writes_a_specification_that_loads(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init") == 0
    assert " tune plimsoll.yaml" in capsys.readouterr().out
    assert run("check", "plimsoll.yaml") == 0


def test_init_from_a_trainers_file_passes_check_which_names_the_baseline(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"acc.yaml": "distributed_type: FSDP\nnum_processes: 2\n"}
    texts["axo.yaml"] = "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 2\nliger_rope: on\n"
    for name, text in texts.items():
        Path(name).write_text(text)

    assert run("init", "--from", "acc.yaml") == 0
    assert "Fill in: model.name" in capsys.readouterr().out
    assert run("check", "plimsoll.yaml") == 2
    assert "model.name: is missing" in capsys.readouterr().err
    assert run("check", "axo.yaml") == 2
    assert "is a configuration of axolotl; `plimsoll init --from " in capsys.readouterr().err
    assert run("init", "--from", "axo.yaml", "mine.yaml") == 0
    assert "Left out: kernels that replace" in capsys.readouterr().out
    assert run("check", "mine.yaml", "--set", "baseline.zero_stage=1") == 0
    assert "The baseline is not legal here: " in capsys.readouterr().out


def test_init_does_not_overwrite(spec_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", spec_path) == 2
    assert capsys.readouterr().err == "demo.yaml exists; --force replaces it\n"
    assert spec_path.read_text(encoding="utf-8") == LEAST

    assert run("init", spec_path, "--force") == 0
    assert spec_path.read_text(encoding="utf-8") != LEAST


def test_check_says_what_a_sweep_would_do(
    spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text(LEAST + "cluster: {device: cpu, workers: 2}", encoding="utf-8")

    assert run("check", spec_path) == 0

    *block, what, space, searched = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in block if line[0] != " "] == [
        *("data", "model", "loss", "machine")
    ]
    assert what.startswith("demo.yaml is valid: the study demo tries up to 40 plans of gpt2 in")
    assert space == "On 2 ranks, 300 of 300 combinations are legal."
    assert searched == (
        "Searched: zero_stage 0, 2, 3; micro_batch 1, 2, 4, 8, 16;"
        " checkpoint_ratio 0.0, 0.25, 0.5, 0.75, 1.0; attention sdpa, eager; loss whole, chunked."
    )

    assert run("check", spec_path, "--set", "trainer=trl", "--set", "space.zero_stage=[0]") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Searched: micro_batch 1, 2, 4, 8, 16; checkpoint_ratio 0.0, 1.0; attention sdpa, eager.",
        "Trainer trl takes 20 of 100 legal plans. 20 leave, such as where loss is chunked. 60"
        " leave, such as where checkpoint_ratio is 0.25: it recomputes all blocks or none.",
    ]


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("vector", "forward returned one loss per sample, shape (2,): return loss.mean()"),
        (
            "mapping",
            'mean over labels that are not -100, shifted by one, under "loss" of a mapping',
        ),
        ("mask", "mean over the sum of mask"),
    ],
)
def test_check_says_what_the_loss_of_a_function_is_a_mean_over(
    loss: str, words: str, spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text(
        f"model: {{name: 'tests.workers.loss_models:make', config: {{loss: {loss}}}}}\n"
        "train: {global_batch: 8, sequence_length: 16, precision: fp32}\n"
        "cluster: {device: cpu, workers: 1}\n"
    )

    assert run("check", spec_path) == (2 if loss == "vector" else 0)

    out, err = capsys.readouterr()
    assert words in (err if loss == "vector" else out)


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize("where", ["build", "forward", "backward", "data"])
@pytest.mark.parametrize("fault", ["raises", "unspeakable", "exits"])
def test_check_says_in_a_sentence_why_there_is_no_forecast(
    fault: str, where: str, spec_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = f"{{name: 'tests.workers.odd_models:make', config: {{fault: {fault}, where: {where}}}}}"
    spec_path.write_text(
        f"model: {model}\ntrain: {{global_batch: 8, sequence_length: 8}}\ncluster: {{workers: 2}}",
        encoding="utf-8",
    )

    assert run("check", spec_path) == 0  # on a machine with GPUs it may run

    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("No forecast: tests.workers.odd_models:make cannot be")
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trials", "0"], "budget.trials is 0: must be 1 or more"),
        (["--minutes", "inf"], "budget.minutes is Infinity: must be a finite number"),
    ],
)
def test_tune_checks_its_options(
    options: list[str], words: str, spec_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tune", spec_path, *options) == 2
    assert words in capsys.readouterr().err


def test_models_lists_the_presets_with_published_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models") == 0

    rows = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert rows["gpt2"] == ["124", "M"]
    assert rows["llama-3-8b"] == ["8.03", "B"]
    assert rows["bert-large"] == ["335", "M"]


@pytest.mark.thorough
def test_an_example_runs_from_the_folder_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run("init", "--example", "demo") == 0
    assert "cd demo && plimsoll tune demo.yaml" in capsys.readouterr().out
    assert run("init", "--example", "demo") == 2
    assert capsys.readouterr().err == "demo/demo.yaml exists; --force replaces it\n"
    monkeypatch.chdir(tmp_path / "demo")
    assert run("check", "demo.yaml") == 0
    assert [file.name for file in sorted(Path().iterdir())] == ["demo.yaml", "topics.txt"]


@pytest.mark.thorough
def test_check_says_what_would_change_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BERT's relatives that mix padding into samples, as FNet does with its Fourier transforms."""
    model = tmp_path / "fnet"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "fnet", "architectures": ["FNetForMaskedLM"]}'
    )
    spec = tmp_path / "fnet.yaml"
    spec.write_text(
        f"model: {{name: {model}, task: masked-lm}}\n"
        "cluster: {device: cuda, workers: 1}\n"
        "data: {lengths: {128: 1, 512: 2}}\n"
        "train: {global_batch: 16, sequence_length: 512}\n"
    )

    with pytest.raises(SystemExit) as ended:
        main(["check", str(spec)])

    told = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "Lossless plans only: padding changes the outputs of FNetForMaskedLM" in told
    assert "use micro_batch 1 and pad_multiple 1, or samples of one length." in told
