"""The Python API for real: a class of `__main__` is tuned, resumed, told from another, and used."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from tests.commands import run_command
from tests.plimsoll.own_net import NET

PROGRAM = """
import json, sys, torch, plimsoll

samples = [{"x": torch.full((8,), number / 9), "y": [0.5] * 8} for number in range(9)]

def tune(trials):
    return plimsoll.tune(Net, data=samples, global_batch=4, workers=1, device="cpu", minutes=60,
        trials=trials, space={"micro_batch": [1, 2], "checkpoint_ratio": [0.0]}, view=False,
        validation={"enabled": False, "repeats": 0}, tracking={"enabled": False})

if __name__ == "__main__":
    import logging
    logging.basicConfig(level=logging.INFO)
    trials, refused, forward = int(sys.argv[1]), "", Net.forward
    if trials > 1:
        Net.forward = lambda self, x, y: 2 * forward(self, x, y)
        try:
            tune(trials)
        except plimsoll.PlimsollError as error:
            refused = str(error)
        Net.forward = forward
    sweep = tune(trials)
    plan, training = sweep.best.plan, sweep.best.apply(Net())
    batch = {"x": torch.ones(plan.micro_batch, 8), "y": torch.ones(plan.micro_batch, 8)}
    loss = training.step([batch] * plan.accumulation)
    print(json.dumps([len(sweep.records), sweep.records[0]["started_at"], loss, refused]))
"""


def run_program(folder: Path, trials: int) -> tuple[list[Any], str]:
    """Runs the program outside of the checkout; returns what it printed and what it logged."""
    (folder / "train.py").write_text(NET + PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(Path(plimsoll.__file__).parents[1])
    ran = run_command(
        [sys.executable, "train.py", str(trials)],
        folder=folder,
        environment=environment,
        seconds=800,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


@pytest.mark.slow
def test_a_class_of_the_running_program_is_tuned_resumed_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (records, began, loss, _), log = run_program(tmp_path, 1)
    assert (records, loss > 0) == (1, True)
    assert "INFO:plimsoll:[0:00:" in log

    (records, began_again, _, refused), _ = run_program(tmp_path, 2)
    assert (records > 1, began_again) == (True, began)  # a slow machine is checked by more trials
    assert "measurements of another job (code or data of Net changed)" in refused

    monkeypatch.chdir(tmp_path)
    sweep = plimsoll.open_study("plimsoll-runs/Net")
    assert repr(sweep).startswith("<Sweep Net: trial ")
    assert len(repr(sweep.best)) < 200
    assert "Evidence" in sweep.report()
    assert "plimsoll explain Net" in sweep.explain()
    with pytest.raises(plimsoll.PlimsollError, match="micro_batch"):
        sweep.explain(micro_batch=0)
    assert len(sweep.to_pandas()["plan.micro_batch"]) == records
    assert sweep._repr_html_().startswith("<iframe srcdoc=")
    folder = sweep.export("torchrun", "mine")
    assert [file.suffix for file in (folder / "inputs" / "model").iterdir()] == [".pickle"]


@pytest.mark.slow
def test_plans_are_forecast_for_other_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    report = plimsoll.plan("gpt2", global_batch=64, gpu="H100", workers=8, sequence_length=256)

    assert repr(report).startswith("<Report: gpt2 on 8 x H100")
    assert report.values["device"].startswith("H100")
    assert str(report._repr_html_()).startswith("<iframe srcdoc=")
