"""NVML through pynvml and ctypes, against a library in C that stands in for the driver."""

import ctypes
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch
import yaml

from orchestrator.forecast.request import device_of
from orchestrator.host import system_facts
from search_spaces.hardware.names import DeviceError
from search_spaces.specification.sections import ObjectiveSpec
from search_spaces.trial import Conditions
from tests.orchestrator.cli.commands import command
from tests.orchestrator.records import make_spec
from tests.workers.measure.test_loop import training
from workers.data.batches import StepBatches
from workers.data.collate import MicroBatch
from workers.engines.stopwatch import Stopwatch
from workers.engines.torch import TorchTraining
from workers.measure.conditions import ConditionsSampler
from workers.measure.environment import environment_of
from workers.measure.loop import Series, measure_steps
from workers.memory.device_runtime import CpuRuntime
from workers.memory.nvml import missing_for_energy, nvml, nvml_device
from workers.probe.rank import _power_watts

MIB, GIB = 2**20, 2**30
NOT_SUPPORTED, IS_LOST = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST
CUDA = torch.device("cuda", 0)


class Gpu(ctypes.Structure):
    """One GPU of the stub: `struct gpu` in stub_nvml.c."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        *(
            (field, ctypes.c_ulonglong)
            for field in ("total", "reserved", "used", "reasons", "energy")
        ),
        *((field, ctypes.c_uint) for field in ("power", "power_limit", "utilisation")),
        *((field, ctypes.c_uint) for field in ("clock", "application_clock")),
        *(
            (field, ctypes.c_int)
            for field in ("status", "memory_status", "v2_status", "sensor_status")
        ),
    )


class Driver:
    """The stub's variables; a machine with two unequal GPUs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.gpus = (Gpu * 4).in_dll(library, "stub_gpus")
        self.gpus[0] = Gpu(
            uuid=b"GPU-0a", name=b"NVIDIA H100 80GB HBM3", total=80 * GIB, reserved=600 * MIB,
            used=5 * GIB, power=650_500, power_limit=700_000, utilisation=97,
            clock=1_410, application_clock=1_980,
        )  # fmt: skip
        self.gpus[1] = Gpu(uuid=b"GPU-1b", name=b"Tesla T4", total=16 * GIB, used=GIB)
        self["count"], self["loaded"], self["lost"], self["opened"] = 2, 1, 0, 0

    def __setitem__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, f"stub_{name}").value = value

    def __getitem__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, f"stub_{name}").value


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compiles and loads the stub. Its name is the driver's, so pynvml is handed this one."""
    if pynvml.nvmlLib is not None:
        pytest.skip("the driver's own library is loaded")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("stub_nvml.c")
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-o", str(path), str(source)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def driver(library: ctypes.CDLL) -> Iterator[Driver]:
    """A driver that is gone again after the test, with every opening closed."""
    loaded = Driver(library)
    yield loaded
    assert loaded["opened"] == 0
    loaded["loaded"] = 0


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an empty folder the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the UUID that torch would report of its first device."""
    return lambda uuid: monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid=uuid)
    )


class OnCuda:
    """A training on the CPU that says to be on a GPU."""

    device = CUDA

    def __init__(self, inner: TorchTraining) -> None:
        self.step = inner.step


def sampled(before: Callable[[], None] = lambda: None) -> Conditions:
    """Samples once, with the GPU as it is after `before`."""
    with ConditionsSampler.running(CUDA) as sampler:
        before()
        sampler.begin()
        while sampler.read().host_memory_percent is None:
            time.sleep(0.01)
    return sampler.read()  # the thread has ended, and with it the sample


@pytest.mark.parametrize("status", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, NOT_SUPPORTED])
def test_an_old_driver_is_asked_in_the_first_form(
    driver: Driver, cuda: Callable[[str], None], status: int
) -> None:
    cuda("0a")
    driver.gpus[0].v2_status = status

    assert sampled().device_memory_bytes == 5 * GIB + 600 * MIB


def test_a_gpu_without_memory_of_its_own_hides_no_other(driver: Driver) -> None:
    """GB10 shares the host's memory; the driver says "not supported" then."""
    driver.gpus[0].memory_status = NOT_SUPPORTED

    first, second = system_facts()["gpus"]
    assert first == {"name": "NVIDIA H100 80GB HBM3", "memory_gib": None, "driver": "580.0"}
    assert second == {"name": "Tesla T4", "memory_gib": 16.0, "driver": "580.0"}


def test_a_gpu_that_fell_off_the_bus_hides_no_other(driver: Driver) -> None:
    driver.gpus[0].status = IS_LOST

    first, second = system_facts()["gpus"]
    assert first["name"].startswith("unreadable")
    assert second["name"] == "Tesla T4"


@pytest.mark.parametrize("uuid", ["GPU-0a", "MIG-0a"])
def test_the_gpu_is_found_that_torch_means(
    driver: Driver, cuda: Callable[[str], None], uuid: str
) -> None:
    """torch leaves out the first part of a UUID, which is another for instances of MIG."""
    driver.gpus[0].uuid = uuid.encode()
    cuda("0a")

    with nvml_device(CUDA) as gpu:
        assert gpu is not None
        assert gpu.library.nvmlDeviceGetName(gpu.handle) == "NVIDIA H100 80GB HBM3"
    assert _power_watts(CUDA) == 700.0
    found = dict(environment_of(CUDA, but=("LD_PRELOAD",)))
    assert (found["driver"], found["power limit W"]) == ("580.0", "700")
    assert found["application clock MHz"] == "1980"
    assert "LD_PRELOAD" not in found


def test_conditions_are_what_the_driver_says(driver: Driver, cuda: Callable[[str], None]) -> None:
    cuda("0a")
    idle, power_cap, thermal = 0x1, 0x4, 0x40
    driver.gpus[0].reasons = idle | power_cap | thermal

    conditions = sampled()

    assert conditions.device_power_watts == 650.5
    assert conditions.device_utilisation_percent == 97
    assert conditions.device_clock_mhz == 1_410
    assert conditions.device_memory_bytes == 5 * GIB
    assert conditions.throttled == ("hardware thermal", "power cap")


def test_an_instance_of_mig_tells_its_memory_alone(
    driver: Driver, cuda: Callable[[str], None]
) -> None:
    driver.gpus[0].uuid = b"MIG-0a"
    driver.gpus[0].sensor_status = NOT_SUPPORTED
    cuda("0a")

    conditions = sampled()

    assert conditions.device_memory_bytes == 5 * GIB
    assert conditions.device_power_watts is None
    assert conditions.throttled == ()
    assert _power_watts(CUDA) is None
    assert dict(environment_of(CUDA)).keys() & {"driver", "power limit W"} == {"driver"}


@pytest.mark.parametrize(("millijoules", "counts"), [(3000, True), (0, True), (3000, False)])
def test_joules_per_token_are_those_of_the_steps(
    driver: Driver, cuda: Callable[[str], None], millijoules: int, counts: bool
) -> None:
    cuda("0a")
    gpu, now = driver.gpus[0], [0.0]
    gpu.energy, gpu.sensor_status = 7_000_000, 0 if counts else NOT_SUPPORTED

    def step(number: int) -> StepBatches:
        gpu.energy += millijoules
        now[0] += 0.5
        batch = MicroBatch(inputs={"x": torch.ones(2, 4)}, samples=2, tokens=8, targets=2)
        return StepBatches(batches=(batch,), targets=2, tokens=8)

    watch = Stopwatch(CpuRuntime(clock=lambda: now[0]))
    series = measure_steps(OnCuda(training()), step, ObjectiveSpec(), None, watch)

    assert isinstance(series, Series)
    assert series.joules_per_token == (3 / 8 if counts and millijoules else None)
    assert (missing_for_energy(CUDA) is None) == counts


def test_a_driver_that_dies_in_between_ends_no_trial(
    driver: Driver, cuda: Callable[[str], None]
) -> None:
    cuda("0a")

    def die() -> None:
        while not driver["opened"]:
            time.sleep(0.01)
        driver["lost"] = IS_LOST

    conditions = sampled(die)

    assert conditions.device_power_watts is None
    assert system_facts()["gpus"][0]["name"].startswith("unreadable")


def test_without_a_driver_there_is_nothing(driver: Driver, cuda: Callable[[str], None]) -> None:
    driver["loaded"] = 0
    cuda("0a")

    with nvml() as opened:
        assert opened is None
    assert system_facts()["gpus"] == []
    assert sampled().device_power_watts is None


def test_an_unknown_gpu_of_this_machine_is_planned_for_by_its_properties(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.gpus[0].name = b"NVIDIA H99"
    spec = make_spec(cluster={"device": "cuda"})
    with pytest.raises(DeviceError, match="'NVIDIA H99'"):  # torch has no CUDA
        device_of(spec, name=None, devices_per_node=None)
    reported = SimpleNamespace(
        name="NVIDIA H99", total_memory=80 * GIB, major=9, minor=0, multi_processor_count=132,
        clock_rate=1_980_000, memory_clock_rate=2_619_000, memory_bus_width=5120,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: reported)

    device = device_of(spec, name=None, devices_per_node=None)
    assert (device.name, device.memory_bytes, device.estimated) == ("NVIDIA H99", 80 * GIB, True)
    assert device.bf16_flops_per_second == pytest.approx(989e12, rel=0.1)
    with pytest.raises(DeviceError, match="'H99'"):  # a name alone has no properties
        device_of(spec, name="H99", devices_per_node=None)


@pytest.mark.parametrize(
    ("second", "status", "visible", "workers", "words"),
    [
        ("NVIDIA H100 80GB HBM3", 0, None, 2, "ranks: 2 x NVIDIA H100 80GB HBM3 in this machine"),
        ("NVIDIA H100 80GB HBM3", 0, " GPU-1b", 1, "shows 1 of 2 x NVIDIA H100 80GB HBM3 in"),
        ("NVIDIA H100 80GB HBM3", 0, "1,-1,0", 1, "CUDA_VISIBLE_DEVICES shows 1 of 2 x NVIDIA"),
        ("NVIDIA H100 80GB HBM3", 0, "", 1, "CUDA_VISIBLE_DEVICES shows 0 of 2 x NVIDIA"),
        ("Tesla T4", 0, "0,1", None, "has 1 x NVIDIA H100 80GB HBM3 and 1 x Tesla T4"),
        ("Tesla T4", IS_LOST, None, None, "1 x NVIDIA H100 80GB HBM3 and 1 x unreadable: GPU is"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--all",)])
def test_init_takes_the_gpus_that_ranks_can_have(
    driver: Driver,
    second: str,
    status: int,
    visible: str | None,
    workers: int | None,
    words: str,
    form: tuple[str, ...],
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver.gpus[1].name, driver.gpus[1].status = second.encode(), status
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    code, said = command(capsys, "init", *form)

    text = (empty_folder / "plimsoll.yaml").read_text("utf-8")
    assert (code, words in text) == (0, True)
    assert ("Fill in: cluster.workers: GPUs of one kind" in said) == (workers is None)
    assert ((yaml.safe_load(text)["cluster"] or {}).get("workers")) == workers


@pytest.mark.parametrize("lost", ["the GPU", "the driver"])
def test_init_takes_no_gpu_that_cannot_be_read(
    driver: Driver, lost: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver["count"], driver["lost"] = 1, IS_LOST if lost == "the driver" else 0
    driver.gpus[0].status = IS_LOST

    _, said = command(capsys, "init")

    assert "Fill in: cluster.workers: GPUs of one kind; this machine has 1 x unreadable: " in said
    assert "workers: 1" not in (empty_folder / "plimsoll.yaml").read_text("utf-8")


def test_a_recipe_brings_its_own_gpus(
    driver: Driver, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = command(capsys, "init", "--recipe", "fastest-8xh100")

    assert "Fill in" not in said  # though this machine's two are unequal
    tree = yaml.safe_load((empty_folder / "plimsoll.yaml").read_text("utf-8"))
    assert tree["cluster"] == {"device": "cuda", "gpu": "H100", "workers": 8}
