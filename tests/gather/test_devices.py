"""What nvidia-smi and rocm-smi print, recorded from public logs, becomes devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ddpdoctor.facts.peer_links import find_odd_gpus
from ddpdoctor.gather.devices import accelerators
from ddpdoctor.gather.devices.accelerators import gather_devices
from ddpdoctor.gather.devices.kernel_log import MAX_MESSAGES, normal_pci, parse_messages, read_kernel_log
from ddpdoctor.gather.devices.rocm import parse_rocm
from ddpdoctor.gather.devices.smi import parse_gpus, parse_handles
from ddpdoctor.gather.devices.topology import parse_topology

H200 = (
    "0, GPU-6b1f52b0-7f5c-7a8e-0b6e, NVIDIA H200, 9.0, 143771, 4, 570.124.06, 0, 00000000:03:00.0, P0\n"
    "1, GPU-aa1f52b0-7f5c-7a8e-0b6e, NVIDIA H200, 9.0, 143771, 61021, 570.124.06, 2, 00000000:29:00.0, P0\n"
)
RTX4090 = "0, GPU-0dc0, NVIDIA GeForce RTX 4090, 8.9, 24564, 1, 550.54.14, [N/A], 00000000:01:00.0, P8\n"
A100_MIG = (
    "0, GPU-5c89, NVIDIA A100-SXM4-80GB, 8.0, 81920, [Insufficient Permissions], 535.129.03, [N/A], "
    "00000000:07:00.0, P0\n"
)
NEEDS_RESET = (
    "0, GPU-1, NVIDIA H100 80GB HBM3, 9.0, 81559, 0, 535.129.03, [GPU requires reset], 00000000:1B:00.0, "
    "[GPU requires reset]\n"
)
SPARK = "0, GPU-b0ec, NVIDIA GB10, 12.1, [N/A], [N/A], 580.142, [N/A], 0000000F:01:00.0, P0\n"
UNSUPPORTED = "0, GPU-2, Tesla K80, 3.7, 11441, 0, 470.82, [Not Supported], 00000000:04:00.0, P8\n"


def test_h200() -> None:
    first, second = parse_gpus(H200)
    assert (first.index, first.name, first.capability, first.driver) == (
        0,
        "NVIDIA H200",
        "9.0",
        "570.124.06",
    )
    assert first.memory_total == 143771 << 20
    assert (first.ecc_uncorrected, second.ecc_uncorrected) == (0, 2)
    assert second.memory_used == 61021 << 20
    assert first.pci == "00000000:03:00.0"
    assert first.uuid != second.uuid
    assert first.state is None


@pytest.mark.parametrize("text", [RTX4090, A100_MIG, SPARK, UNSUPPORTED])
def test_a_field_that_a_card_lacks_is_none_and_no_fault(text: str) -> None:
    (card,) = parse_gpus(text)
    assert card.ecc_uncorrected is None
    assert card.state is None
    assert card.name
    assert card.capability


def test_unknown_memory() -> None:
    assert parse_gpus(SPARK)[0].memory_total is None
    assert parse_gpus(A100_MIG)[0].memory_used is None


def test_a_card_that_needs_a_reset_says_so() -> None:
    (card,) = parse_gpus(NEEDS_RESET)
    assert card.state == "[GPU requires reset]"
    assert card.ecc_uncorrected is None
    assert card.memory_total == 81559 << 20


@pytest.mark.parametrize("text", ["", "No devices were found\n", "garbage, x\n", "a,b,c,d,e,f,g,h,i,j\n"])
def test_lines_that_are_no_rows_are_passed_over(text: str) -> None:
    assert parse_gpus(text) == ()


@pytest.mark.parametrize(
    ("text", "index", "pci"),
    [
        ("Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error\n", 0, "0000:CB:00"),
        ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\n", 1, "0000:34:00"),
        (
            "Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.  Reboot\n",
            0,
            "0000:C1:00",
        ),
    ],
)
def test_a_device_without_a_handle_is_still_a_device(text: str, index: int, pci: str) -> None:
    (card,) = parse_handles("Wed Nov 18 10:00:00\n" + text + text)
    assert (card.index, card.pci, card.uuid) == (index, pci, None)
    assert (card.state or "").startswith("Unable to determine the device handle")


def test_topology_of_four_cards_and_adapters() -> None:
    text = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\tPHB\tSYS\tPIX\tSYS\t0-47\t0\t\tN/A\n"
        "GPU1\tNV18\t X \tNODE\tSYS\tNODE\tSYS\t0-47\t0\t\tN/A\n"
        "GPU2\tPHB\tNODE\t X \tNV4\tSYS\tPIX\t48-95\t1\t\tN/A\n"
        "GPU3\tSYS\tSYS\tNV4\t X \tSYS\tNODE\t48-95\t1\t\tN/A\n"
        "NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
        "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NIC0: mlx5_0\n"
    )
    links = parse_topology(text)
    assert links[0] == {"1": "NV18", "2": "PHB", "3": "SYS"}
    assert links[3] == {"0": "SYS", "1": "SYS", "2": "NV4"}
    assert set(links) == {0, 1, 2, 3}


def test_topology_with_blanks_for_tabs_and_without_cards() -> None:
    text = "      GPU0  GPU1  CPU Affinity  NUMA\nGPU0   X    NV18  0-51  0\nGPU1  NV18   X    0-51  0\n"
    assert parse_topology(text) == {0: {"1": "NV18"}, 1: {"0": "NV18"}}
    assert parse_topology("") == {}
    assert parse_topology("Failed to initialize NVML: Unknown Error\n") == {}


def test_xids_go_to_their_card_with_their_age() -> None:
    log = (
        "[  100.000000] NVRM: Xid (PCI:0000:83:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "[  160.500000] eth0: link up\n"
        "kernel: NVRM: Xid (PCI:0000:01:00): 48, pid=1234, DBE at 0x0\n"
    )
    found = parse_messages(log, uptime_s=4000.0)
    assert found["0000:83:00"] == ["Xid 79, pid='<unknown>', GPU has fallen off the bus. (1 h ago)"]
    assert found["0000:01:00"] == ["Xid 48, pid=1234, DBE at 0x0"]


def test_a_card_that_repeats_itself_keeps_its_last_messages() -> None:
    log = "\n".join(f"NVRM: Xid (PCI:0000:83:00): 31, pid={n}" for n in range(300))
    assert parse_messages(log)["0000:83:00"][-1] == "Xid 31, pid=299"
    assert len(parse_messages(log)["0000:83:00"]) == MAX_MESSAGES


AMDGPU = """\
[  600.0] amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0 2 uncorrectable hardware errors detected in umc block
[  601.0] amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0 0 uncorrectable hardware errors detected in gfx block
[  602.0] amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!
[  603.0] amdgpu 0000:83:00.0: amdgpu: [gfxhub0] retry page fault (src_id:0 ring:0 vmid:8)
[  604.0] amdgpu 0000:83:00.0: amdgpu: VM memory stats
"""


def test_amdgpus_messages_of_the_hardware_go_to_their_card() -> None:
    assert parse_messages(AMDGPU, uptime_s=720.0) == {
        "0000:c1:00": [
            "amdgpu: socket: 0, die: 0 2 uncorrectable hardware errors detected in umc block (2 min ago)",
            "amdgpu: GPU reset begin! (2 min ago)",
        ]
    }


def test_rocm_devices_have_the_kernels_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_tool(tmp_path, """echo '{"card0": {"PCI Bus": "0000:C1:00.0"}}'""", "rocm-smi")
    monkeypatch.setattr(accelerators, "find_tool", lambda name: name if name == "rocm-smi" else None)
    monkeypatch.setattr(accelerators, "read_kernel_log", lambda limit_s: AMDGPU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, _ = gather_devices(30.0, tmp_path)
    assert [text[:24] for text in found[0].xid] == ["amdgpu: socket: 0, die: ", "amdgpu: GPU reset begin!"]


def linked(count: int, odd: int | None = None, usual: str = "NV18") -> dict[int, dict[str, str]]:
    return {
        gpu: {str(peer): "SYS" if odd in (gpu, peer) else usual for peer in range(count) if peer != gpu}
        for gpu in range(count)
    }


def test_a_gpu_without_the_links_that_all_others_have_is_odd() -> None:
    assert find_odd_gpus(linked(8, odd=5)) == {5: "SYS to all others, which have NV18"}
    assert find_odd_gpus(linked(4, odd=0, usual="XGMI")) == {0: "SYS to all others, which have XGMI"}
    assert find_odd_gpus(linked(8)) == find_odd_gpus(linked(8, usual="PIX")) == find_odd_gpus({}) == {}
    assert find_odd_gpus(linked(3, odd=2)) == {}, "a pair with a bridge beside a single card"
    gap = linked(8, odd=5)
    gap[0]["1"] = gap[1]["0"] = "SYS"
    assert find_odd_gpus(gap) == {}, "a mesh with gaps"


def test_pci_addresses_compare() -> None:
    assert normal_pci("00000000:83:00.0") == normal_pci("0000:83:00") == "0000:83:00"
    assert normal_pci("0000000F:01:00.0") == "000f:01:00"


def test_a_kernel_log_that_cannot_be_read_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_kernel_log(5.0, str(tmp_path / "none")) == ""


def test_a_kernel_record_reads_like_a_line_of_dmesg(tmp_path: Path) -> None:
    record = tmp_path / "kmsg"
    record.write_text("6,339,5140900,-;NVRM: Xid (PCI:0000:83:00): 79, off the bus\n SUBSYSTEM=pci\n")
    text = read_kernel_log(5.0, str(record))
    assert text == "[    5.140900] NVRM: Xid (PCI:0000:83:00): 79, off the bus"
    assert parse_messages(text, 65.2) == {"0000:83:00": ["Xid 79, off the bus (1 min ago)"]}
    record.write_text("no record")
    assert read_kernel_log(5.0, str(record)) == "no record"


@pytest.mark.parametrize(
    ("body", "count", "part"),
    [
        ("""echo '{"card0": {"Unique ID": "0xa1"}}'""", 1, None),
        ("echo '{}'", 0, "lists no device"),
        ("echo broken >&2; exit 1", 0, "rocm-smi exited with code 1: broken"),
    ],
)
def test_rocm_smi_is_asked_where_there_is_no_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, count: int, part: str | None
) -> None:
    _fake_tool(tmp_path, body, "rocm-smi")
    monkeypatch.setattr(accelerators, "find_tool", lambda name: name if name == "rocm-smi" else None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, note = gather_devices(30.0, tmp_path)
    assert len(found) == count
    assert (note is None) if part is None else (part in (note or ""))


def test_rocm() -> None:
    text = (
        "WARNING: AMD GPU device(s) is/are in a low-power state.\n"
        '{"card1": {"Unique ID": "0xb2", "Card Series": "AMD Instinct MI300X", "PCI Bus": "0000:0C:00.0", '
        '"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "300"}, '
        '"card0": {"Unique ID": "0xa1", "Card series": "N/A", "Card model": "MI250"}, '
        '"system": {"Driver version": "6.3.6"}}'
    )
    first, second = parse_rocm(text)
    assert (first.index, first.name, first.uuid, first.memory_total) == (0, "MI250", "0xa1", None)
    assert (second.name, second.memory_total, second.memory_used) == (
        "AMD Instinct MI300X",
        206141652992,
        300,
    )
    assert {first.kind, second.kind} == {"rocm"}
    assert second.driver == "6.3.6"
    assert parse_rocm("not json") == parse_rocm("[1]") == ()


def _fake_tool(folder: Path, body: str, name: str = "nvidia-smi") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_tool_is_asked_once_and_its_answers_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_tool(
        tmp_path,
        'case "$1" in topo) printf "\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n";;'
        f" *) printf '%s' '{H200}';; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(
        accelerators, "read_kernel_log", lambda limit_s: "[ 1.0] NVRM: Xid (PCI:0000:29:00): 63, row remap"
    )
    found, note = gather_devices(30.0)
    assert note is None
    assert found[0].links == {"1": "NV18"}
    assert found[0].xid == ()
    assert found[1].xid[0].startswith("Xid 63, row remap")


def test_an_old_driver_is_asked_again_with_fewer_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_tool(
        tmp_path,
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;;'
        " topo) exit 1;; *) echo '0, GPU-1, Tesla V100, 16160, 0, 418.87, 00000000:04:00.0, P0';; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(accelerators, "read_kernel_log", lambda limit_s: "")
    found, note = gather_devices(30.0)
    assert note is None
    assert (found[0].name, found[0].capability, found[0].memory_total) == ("Tesla V100", None, 16160 << 20)


@pytest.mark.parametrize(
    ("body", "count", "part"),
    [
        ("echo 'No devices were found'; exit 6", 0, "No devices were found"),
        ("echo 'NVIDIA-SMI has failed because it couldn'; exit 9", 0, "NVIDIA-SMI has failed"),
        ("echo nothing", 0, "lists no device"),
        ("sleep 600", 0, "did not respond within 0.5 s"),
    ],
)
def test_a_tool_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, count: int, part: str
) -> None:
    _fake_tool(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(accelerators, "read_kernel_log", lambda limit_s: "")
    found, note = gather_devices(0.5)
    assert len(found) == count
    assert part in (note or "")


def test_a_lost_card_beside_good_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_tool(
        tmp_path,
        f"printf '%s' '{H200}'; "
        "echo 'Unable to determine the device handle for GPU7: 0000:CB:00.0: Unknown Error'; exit 15",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(accelerators, "read_kernel_log", lambda limit_s: "")
    found, _ = gather_devices(30.0)
    assert [each.index for each in found] == [0, 1, 7]
    assert "Unknown Error" in (found[2].state or "")


def test_no_tool_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gather_devices(5.0, tmp_path) == ((), "neither nvidia-smi nor rocm-smi is installed")
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.touch()
    assert "nvidia-smi is not in PATH" in (gather_devices(5.0, tmp_path)[1] or "")
