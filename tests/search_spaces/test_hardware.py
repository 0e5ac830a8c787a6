"""`hardware`: published specifications, names of devices, and the user's device files."""

import dataclasses
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from search_spaces.errors import SpecError, UserError
from search_spaces.hardware.catalogue import (
    DEVICE_FILES,
    catalogue,
    find_device,
    known_device,
    load_device_file,
    user_folder,
)
from search_spaces.hardware.device import Device
from search_spaces.hardware.files import REQUIRED, device_to_yaml
from search_spaces.hardware.names import DeviceError, words_of
from search_spaces.hardware.properties import DeviceProperties, find_or_estimate_device
from search_spaces.plan import Precision

GIB = 2**30
DEVICES = [pytest.param(device, id=device.name) for device in catalogue()]


def written(folder: Path, text: str) -> Path:
    path = folder / "device.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(folder: Path, text: str) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_device_file(written(folder, text))
    return {fault.path: f"{fault.value} {fault.advice}" for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    # names as the driver reports them; dense figures, without sparsity
    [
        *(("NVIDIA A100-SXM4-80GB", "bf16", 312), ("NVIDIA A100 80GB PCIe", "fp32", 19.5)),
        *(("NVIDIA H100 80GB HBM3", "bf16", 989), ("NVIDIA H100 PCIe", "bf16", 756)),
        *(("NVIDIA H200", "fp32", 67), ("NVIDIA GH200 480GB", "bf16", 989)),
        *(("NVIDIA B200", "bf16", 2250), ("NVIDIA GB200", "bf16", 2500)),
        *(("NVIDIA L4", "bf16", 121), ("NVIDIA L40S", "bf16", 362)),
        *(("NVIDIA GeForce RTX 4090", "bf16", 165.2), ("NVIDIA GeForce RTX 3090", "fp32", 35.6)),
        *(("Tesla V100-SXM2-32GB", "fp16", 125), ("Tesla T4", "fp16", 65)),
        *(("NVIDIA A40", "bf16", 149.7), ("NVIDIA A30", "tf32", 82), ("NVIDIA H20", "bf16", 148)),
        *(("NVIDIA H200 NVL", "bf16", 835.5), ("NVIDIA GeForce RTX 3060", "fp16", 25.4)),
        *(("NVIDIA GeForce RTX 4080", "fp16", 97.5), ("NVIDIA GeForce RTX 5090", "bf16", 209.5)),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "bf16", 503.8),
        ("NVIDIA GB10", "fp32", 31),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16", 312 * 42 / 108),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", 989 * 16 / 132),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", 312 * 14 / 108),
        ("NVIDIA A100 80GB PCIe MIG 7g.80gb", "bf16", 312 * 98 / 108),
        ("NVIDIA H200 MIG 1g.18gb+me", "bf16", 989 * 16 / 132),
        ("NVIDIA B200 MIG 1g.23gb", "bf16", 2250 * 18 / 148),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp32", 120),
        *(("AMD Instinct MI325X", "bf16", 1307.4), ("AMD Instinct MI300X", "bf16", 1307.4)),
        ("AMD Instinct MI250X", "bf16", 191.5),
    ],
)
def test_a_devices_peak_is_that_of_its_data_sheet(
    name: str, precision: Precision, tera: float
) -> None:
    assert known_device(name).peak_flops_per_second(precision) == pytest.approx(
        tera * 1e12, rel=1e-3
    )


@pytest.mark.parametrize(
    "name",
    [
        *("", "NVIDIA L42", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"),
        *("NVIDIA A100-SXM4-40GB MIG 1g.20gb", "NVIDIA H100 PCIe MIG 1g.10gb"),
    ],
)
def test_nothing_is_guessed_of_a_device_that_is_not_known(name: str) -> None:
    with pytest.raises(DeviceError):
        known_device(name)
    assert known_device("Tesla T4").peak_flops_per_second("bf16") == 0.0


@pytest.mark.parametrize("file", DEVICE_FILES)
def test_every_figure_has_its_source(file: str) -> None:
    text = (files("search_spaces") / "devices" / file).read_text("utf-8")
    for entry in yaml.safe_load(text)["devices"]:
        told = [field for fields in entry["sources"].values() for field in fields]
        assert len(told) == len(set(told)), "two sources for one figure"
        figures = {"name", "aliases", "based_on", "architecture", "sources"}
        assert set(entry) - figures <= set(told)


@pytest.mark.parametrize("device", DEVICES)
def test_figures_stand_in_the_order_that_physics_gives_them(device: Device) -> None:
    if device.name == "cpu":
        return
    peaks = [device.peak_flops_per_second(name) for name in ("fp32", "tf32", "fp16", "fp8")]
    assert sorted(filter(None, peaks)) == list(filter(None, peaks))
    assert device.bf16_flops_per_second in (0, device.fp16_flops_per_second) or (
        # half of its fp16; a TPU has no units for fp16
        device.name == "MI100" or (device.kind, device.fp16_flops_per_second) == ("tpu", 0)
    )
    assert device.bandwidth_bytes_per_second > device.link_bytes_per_second
    assert device.link_bytes_per_second >= device.network_bytes_per_second
    assert device.host_bandwidth_bytes_per_second > device.nvme_read_bytes_per_second
    assert device.nvme_read_bytes_per_second >= device.nvme_write_bytes_per_second
    assert device.memory_bytes > 9 * device.context_bytes


@pytest.mark.parametrize(
    ("name", "gib"),
    # what people buy; the driver keeps up to a twelfth, most where ECC shares the memory (T4, A10G)
    [
        *(("V100-16", 16), ("T4", 16), ("A10G", 24), ("L40S", 48), ("A100-40", 40)),
        *(("A100-80", 80), ("H100", 80), ("RTX 4090", 24), ("MI250X", 64), ("MI300X", 192)),
        *(("A40", 48), ("A30", 24), ("H200 NVL", 141), ("RTX 3060", 12), ("RTX 4080", 16)),
        *(("RTX 5090", 32), ("RTX PRO 6000", 96), ("MI325X", 256), ("H20", 96), ("GB10", 128)),
        *(("A100-80 MIG 1g.10gb", 10), ("H100-80 MIG 3g.40gb", 40), ("A100-40 MIG 1g.5gb", 5)),
    ],
)
def test_memory_is_what_the_driver_leaves_of_the_nominal(name: str, gib: int) -> None:
    assert 0.91 * gib < known_device(name).memory_bytes / GIB < gib


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *(("A100", "A100-80"), ("A100-40GB-SXM", "A100-40"), ("a100_sxm4_40gb", "A100-40")),
        *(("A100-PCIe-80GB", "A100-80-PCIe"), ("H100", "H100-80-SXM")),
        *(("H100-80GB?", "H100-80-SXM"), ("H100-96GB-HBM2e-500W", "H100-96-SXM")),
        *(("H100 SXM5 80 GB", "H100-80-SXM"), ("V100-PCIe-32GB", "V100-32-PCIe")),
        *(("V100", "V100-32"), ("MI250 (one GCD?)", "MI250")),
        *(("AMD Instinct MI250X/MI250", "MI250X"), ("MI300X-192GB", "MI300X")),
        *(("TPU-V5LITEPOD", "TPU v5e"), ("TPU7x", "TPU v7"), ("TPU-V5P", "TPU v5p")),
        *(("RTX 3090 Ti-24GB", "RTX 3090 Ti"), ("RTX 4090-24GB(PCIe4 x16)", "RTX 4090")),
        *(("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"), ("NVIDIA B300 SXM6 AC", "B300")),
    ],
)
def test_a_device_is_known_by_all_its_spellings(spelling: str, name: str) -> None:
    assert known_device(spelling).name == name


def test_no_spelling_means_two_devices() -> None:
    meant: dict[frozenset[str], str] = {}
    for device in catalogue():
        for spelling in (device.name, *device.aliases):
            assert meant.setdefault(words_of(spelling), device.name) == device.name, spelling


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        *(("H100-90GB", "H100-80-SXM"), ("MI350X", "MI250X"), ("A10-G", "A10G")),
        ("RTX 4070", "RTX 4090"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(DeviceError, match=nearest) as caught:
        known_device(wrong)

    assert repr(wrong) in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_a_file_says_only_what_differs(tmp_path: Path) -> None:
    text = (
        "name: our H100\nbased_on: H100-80GB\npower_watts: 500\n"
        "sources: {handbook: [power_watts]}\n"
    )
    (device,) = load_device_file(written(tmp_path, text))
    base = known_device("H100")

    assert device == dataclasses.replace(base, name="our H100", aliases=(), power_watts=500.0)


def test_a_file_may_hold_devices_that_build_on_each_other(tmp_path: Path) -> None:
    text = (
        "devices:\n"
        "  - {name: one, based_on: T4, price_per_hour: 0.5}\n"
        "  - {name: two, based_on: one, node_devices: 4}\n"
    )
    one, two = load_device_file(written(tmp_path, text))

    assert (two.price_per_hour, two.node_devices, one.node_devices) == (0.5, 4, 8)


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        "name: x\nbased_on: H100\nmemory_byte: 5\npower_watts: -3\nlink_kind: wire\n"
        "measured: 1\nnode_devices: true\nmatmul_points: [[bf16, 1, 2, 3]]\n"
        "sources: {book: [weight]}\n",
    )

    assert "did you mean memory_bytes?" in found["memory_byte"]
    assert found["power_watts"] == "-3 must be above 0"
    assert '"wire" must be nvlink' in found["link_kind"]
    assert {"measured", "node_devices", "sources.book"} <= set(found)
    assert any(path.startswith("matmul_points") for path in found)


def test_what_is_missing_is_told_by_name(tmp_path: Path) -> None:
    found = faults_of(tmp_path, "name: x\nmemory_bytes: 5\n")

    assert set(found) == set(REQUIRED) - {"name", "memory_bytes"}


def test_a_base_that_nobody_knows_is_a_fault_with_the_nearest(tmp_path: Path) -> None:
    found = faults_of(tmp_path, "name: x\nbased_on: H101\npower_watts: yes\n")

    assert "H100" in found["based_on"]
    assert set(found) == {"based_on", "power_watts"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is empty"),
        ("- 1", "a list"),
        ("devices: 3", "must be a list"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_device_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        load_device_file(written(tmp_path, text))
    with pytest.raises(SpecError, match="does not exist"):
        load_device_file(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a folder; name the YAML file in it"):
        load_device_file(tmp_path)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_is_read_as_it_was_written(tmp_path: Path, device: Device) -> None:
    measured = dataclasses.replace(
        device,
        measured=True,
        drive_access="page_cache",
        price_per_hour=1.25,
        launch_seconds=1 / 3e5,
        matmul_points=(("bf16", 64, 128, 32, 1.234e12), ("fp32", 1, 1, 1, 10.5)),
        collective_points=(("all_reduce", 2, 1024, 1e-5),),
    )

    assert load_device_file(written(tmp_path, device_to_yaml(measured))) == (measured,)


def test_a_file_without_the_drives_access_is_read(tmp_path: Path) -> None:
    """Probes of earlier versions told it in the source alone."""
    measured = dataclasses.replace(known_device("A100"), measured=True)
    text = device_to_yaml(measured)

    assert "drive_access" not in text
    (device,) = load_device_file(written(tmp_path, text))
    assert device.drive_access is None
    assert "drive_access" in faults_of(tmp_path, f"{text}drive_access: telepathy\n")


@pytest.fixture
def own_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_folder().mkdir(parents=True)
    return user_folder()


def test_the_users_devices_come_before_the_catalogues(own_devices: Path) -> None:
    mine = dataclasses.replace(known_device("A100"), bandwidth_bytes_per_second=1.7e12)
    written(own_devices, device_to_yaml(mine))

    assert find_device("NVIDIA A100-SXM4-80GB") == mine
    assert known_device("A100") != mine


def test_a_fault_in_the_users_folder_names_the_file(own_devices: Path) -> None:
    written(own_devices, "name: x\nbased_on: A100\npower: 3\n")

    with pytest.raises(SpecError, match=r"device\.yaml"):
        find_device("A100")


def test_the_users_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert user_folder() == tmp_path / "plimsoll" / "devices"


@pytest.mark.parametrize(
    ("name", "slices"),
    # NVIDIA's user guide: fractions of memory, in eighths
    [
        *(("A100-40 MIG 1g.5gb", 1), ("A100-40 MIG 1g.10gb", 2), ("A100-80 MIG 3g.40gb", 4)),
        *(("H100 MIG 1g.20gb", 2), ("H100 MIG 4g.40gb", 4), ("H200 MIG 1g.18gb", 1)),
        *(("H200 MIG 7g.141gb", 8), ("B200 MIG 2g.45gb", 2), ("B200 MIG 1g.23gb", 1)),
    ],
)
def test_an_instance_of_mig_is_a_part_of_its_board(name: str, slices: int) -> None:
    board, device = known_device(name.split(" MIG ", maxsplit=1)[0]), known_device(name)
    bandwidth = board.bandwidth_bytes_per_second * slices / 8

    assert device.bandwidth_bytes_per_second == bandwidth
    assert 0.85 * slices / 8 < device.memory_bytes / board.memory_bytes < slices / 8
    assert (device.node_devices, device.link_kind) == (1, "pcie")


@pytest.mark.parametrize(
    ("name", "properties"),
    # compute capability, SMs, MHz, MHz of the memory, bits: what deviceQuery of CUDA prints
    [
        *(("V100-32", (7, 0, 80, 1530, 877, 4096)), ("T4", (7, 5, 40, 1590, 5001, 256))),
        *(("A100-40", (8, 0, 108, 1410, 1215, 5120)), ("A40", (8, 6, 84, 1740, 7251, 384))),
        *(("L40S", (8, 9, 142, 2520, 9001, 384)), ("H100", (9, 0, 132, 1980, 2619, 5120))),
        *(("B200", (10, 0, 148, 1965, 3996, 7680)), ("RTX 5090", (12, 0, 170, 2407, 14001, 512))),
        *(("RTX PRO 6000", (12, 0, 188, 2617, 14001, 512)), ("L4", (8, 9, 58, 2040, 6251, 192))),
        ("RTX 4090", (8, 9, 128, 2520, 10501, 384)),
    ],
)
def test_an_unknown_gpu_is_estimated_within_a_tenth_of_its_data_sheet(
    name: str, properties: tuple[int, ...]
) -> None:
    *capability, sms, clock, memory_clock, bits = properties
    reported = DeviceProperties(
        compute_capability=(capability[0], capability[1]),
        multiprocessors=sms,
        clock_hertz=clock * 1e6,
        memory_clock_hertz=memory_clock * 1e6,
        memory_bus_bits=bits,
    )
    known = known_device(name)
    maker = "GeForce" if name in ("RTX 4090", "RTX 5090") else "NVIDIA"
    device = find_or_estimate_device(f"{maker} Unknown", known.memory_bytes, reported)

    assert device.estimated
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        peak = known.peak_flops_per_second(precision)
        assert device.peak_flops_per_second(precision) == pytest.approx(peak, rel=0.1), precision
    assert device.bandwidth_bytes_per_second == pytest.approx(
        known.bandwidth_bytes_per_second, rel=0.1
    )
    assert device.architecture == known.architecture
    assert find_or_estimate_device("NVIDIA A100-SXM4-80GB", 1, reported) == known_device("A100")


def test_a_gpu_that_cannot_be_estimated_is_unknown() -> None:
    pascal = DeviceProperties(
        compute_capability=(6, 1),
        multiprocessors=28,
        clock_hertz=1.6e9,
        memory_clock_hertz=5.5e9,
        memory_bus_bits=352,
    )
    for properties in (None, pascal):
        with pytest.raises(DeviceError, match="RTX 4080"):
            find_or_estimate_device("GeForce GTX 1080 Ti", 2**33, properties)
