"""What vendors' tools print of devices in trouble, read by its structure."""

from __future__ import annotations

import json

import pytest

from ddpdoctor.aftermath.toolfiles import PREFIX, read_tool
from ddpdoctor.evidence.texts import match_line
from tests.evidence.corpus import FOLDER

SMI = (FOLDER / "smi-q-rows-pending" / "nvidia-smi-q.txt").read_bytes()
DIAG = (FOLDER / "dcgmi-diag-memory-fail" / "dcgmi-diag.txt").read_bytes()
IBSTAT = (FOLDER / "ibstat-port-polling" / "ibstat.txt").read_bytes()
ETHTOOL = (FOLDER / "ethtool-crc" / "ethtool-S-ens1f0np0.txt").read_bytes()
JSON = json.dumps(
    {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Hardware",
                    "tests": [
                        {
                            "name": "memory",
                            "results": [
                                {"entity_group": "GPU", "entity_id": 2, "status": "Pass"},
                                {"entity_group": "GPU", "entity_id": 5, "status": "Fail"},
                            ],
                        }
                    ],
                }
            ]
        }
    }
).encode()
FABRIC = SMI.replace(
    b"    Remapped Rows", b"    Fabric\n        State : In Progress\n        Status : N/A\n    Remapped Rows"
)
RAS = (FOLDER / "ras-json-unresponsive" / "ncclras.json").read_bytes()


def told(data: bytes) -> list[str]:
    lines = read_tool(data)
    assert lines is not None
    assert all(text.startswith(PREFIX) for _, text in lines)
    return [text.removeprefix(PREFIX) for _, text in lines]


def test_gpu_of_nvidia_smi_is_named_by_its_bus() -> None:
    assert told(SMI) == [
        "GPU 00000000:65:00.0: uncorrectable memory errors: DRAM Uncorrectable : 17",
        "GPU 00000000:65:00.0: memory rows: Pending : Yes",
    ]
    assert told(SMI.replace(b": 17", b": 0").replace(b": Yes", b": No")) == []
    assert "GPU 00000000:17:00.0: fabric not ready: State : In Progress" in told(FABRIC)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DIAG, "GPU 3: failed its diagnosis: GPU Memory : Fail"),
        (DIAG, "GPU 3: failed its diagnosis: Detected 128 uncorrectable memory errors"),
        (JSON, "GPU 5: failed its diagnosis: memory : Fail"),
        (IBSTAT, "adapter mlx5_1 port 1 is not up: Down, Physical state: Polling"),
        (ETHTOOL, "adapter counts errors: rx_crc_errors_phy: 418822"),
        (RAS, "rank 1 of NCCL's RAS does not answer: process 1524345 on node 172.16.64.245"),
    ],
)
def test_trouble_is_a_line_that_the_table_of_texts_knows(data: bytes, words: str) -> None:
    assert words in told(data)
    assert match_line(PREFIX + words)


def test_devices_that_are_well_say_nothing() -> None:
    assert told(IBSTAT.replace(b"Down", b"Active").replace(b"Polling", b"LinkUp")) == []
    assert told(ETHTOOL.replace(b"418822", b"0").replace(b"90114", b"0")) == []
    assert not any("GPU 2" in text for text in told(JSON))


@pytest.mark.parametrize("data", [b"", b"step 1 loss 0.5\n", b"\x00" * 100, b'{"a": 1}'])
def test_other_files_are_no_tools_output(data: bytes) -> None:
    assert read_tool(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"==NVSMI LOG==\nGPU 00000000:65:00.0\n" + b" " * 50_000 + b"x : 1\n" + b"a" * 100_000,
        b"Successfully ran diagnostic\n" + b"| " * 50_000 + b"\n|" + b" " * 90_000,
        b'"DCGM Diagnostic"' + b"[" * 100_000,
        b"NIC statistics:\n" + b" rx_crc_errors: " + b"9" * 90_000 + b"\n",
    ],
)
def test_hostile_files_are_harmless(data: bytes) -> None:
    assert len(read_tool(data) or []) <= 200
