"""What vendors' tools print of devices in trouble, read by its structure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor import cli
from ddpdoctor.aftermath.toolfiles import PREFIX, read_tool
from ddpdoctor.evidence.texts.matching import match_line
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


TOPOLOGY = b"""\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNODE\tNV18\tPIX\t0-31\t0
GPU1\tNV18\t X \tNODE\tNV18\tNODE\t0-31\t0
GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-31\t0
GPU3\tNV18\tNV18\tSYS\t X \tSYS\t32-63\t1
NIC0\tPIX\tNODE\tNODE\tSYS\t X
"""
INTERFACES = b"""\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    RX:  bytes packets errors dropped  missed   mcast
    9912 40 4000 0 0 0
    TX:  bytes packets errors dropped carrier collsns
    9912 40 0 0 0 0
2: ens1f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT group default qlen 1000
    link/ether aa:bb:cc:00:11:22 brd ff:ff:ff:ff:ff:ff
    RX:  bytes packets errors dropped  missed   mcast
    71880211 9000000 41200 0 0 12
    TX:  bytes packets errors dropped carrier collsns
    81880211 9000100 0 0 3 0
3: ens1f1@ens1f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT group default qlen 1000
    RX: bytes  packets  errors  dropped overrun mcast
    7188021100 900000000 120 0 0 12
"""
LINKS = b"""\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 0
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-666666666666)
\t Link 7: Replay Errors: 2
\t Link 7: Recovery Errors: 4
"""
STATES = b"".join(
    b"GPU %d: NVIDIA A100 (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\t Link 1: %s\n\t Link 2: <inactive>\n"
    % (gpu, b"<inactive>" if gpu == 2 else b"25 GB/s")
    for gpu in range(4)
)
CARDS = b"hca_id:\tmlx5_3\n\ttransport:\t\tInfiniBand (0)\n\t\tport:\t2\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n"
COUNTERS = b"""\
# Port counters: Lid 12 port 1 (CapMask: 0x5300)
PortSelect:......................1
SymbolErrorCounter:..............65535
LinkDownedCounter:...............1
PortRcvErrors:...................0
"""
ROCM = b"""\
GPU[0]\t\t: RAS INFO
         Block       Status    Correctable Error   Uncorrectable Error
           UMC      ENABLED                  12                     0
GPU[5]\t\t: RAS INFO
         Block       Status    Correctable Error   Uncorrectable Error
           UMC      ENABLED                   0                     2
           MMHUB   DISABLED                   0                     4
"""
AMD = b"GPU: 0\n    ECC:\n        TOTAL_UNCORRECTABLE_COUNT: 0\nGPU: 6\n    ECC:\n        TOTAL_UNCORRECTABLE_COUNT: 1\n"


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
        (TOPOLOGY, "GPU 2: links missing: NODE, SYS to all others, which have NV18"),
        (INTERFACES, "interface ens1f0 counts errors: 41200 beside 9000000 packets received"),
        (INTERFACES, "interface ens1f0 counts errors: its carrier was lost 3 times"),
        (LINKS, "GPU 1: link errors: Link 7: Recovery Errors: 4"),
        (STATES, "GPU 2: link errors: Link 1 is inactive, and active on all other GPUs"),
        (CARDS, "adapter mlx5_3 port 2 is not up: PORT_DOWN (1)"),
        (COUNTERS, "adapter counts errors: SymbolErrorCounter: 65535"),
        (ROCM, "GPU 5: uncorrectable memory errors: UMC : 2"),
        (AMD, "GPU 6: uncorrectable memory errors: total : 1"),
        (RAS, "rank 1 of NCCL's RAS does not answer: process 1524345 on node 172.16.64.245"),
    ],
)
def test_trouble_is_a_line_that_the_table_of_texts_knows(data: bytes, words: str) -> None:
    assert words in told(data)
    assert match_line(PREFIX + words)


WAITED = "".join(
    f"[rank{rank}]:[E] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=212, "
    "OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    for rank in range(4)
)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (TOPOLOGY, "BKD010"),
        (LINKS, "BKD010"),
        (ROCM, "BKD010"),
        (INTERFACES, "NET011"),
        (CARDS, "NET016"),
        (COUNTERS, "NET016"),
        (b"\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n", "COL005"),
    ],
)
def test_trouble_of_a_device_explains_ranks_that_waited(tmp_path: Path, data: bytes, code: str) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.log").write_text(WAITED)
    (tmp_path / "job/tool.txt").write_bytes(data)
    out = tmp_path / "report.json"
    cli.main(["analyze", str(tmp_path / "job"), "--json", str(out), "--quiet", "--no-color"])
    first = json.loads(out.read_text())["findings"][0]
    assert first["code"] == code
    assert first["confidence"] != "high", "counters do not say when it happened"


def test_devices_that_are_well_say_nothing() -> None:
    assert told(IBSTAT.replace(b"Down", b"Active").replace(b"Polling", b"LinkUp")) == []
    assert told(ETHTOOL.replace(b"418822", b"0").replace(b"90114", b"0")) == []
    assert not any("GPU 2" in text for text in told(JSON))
    assert told(TOPOLOGY.replace(b"NODE\t", b"NV18\t").replace(b"SYS\t", b"NV18\t")) == []
    assert told(TOPOLOGY.replace(b"NV18", b"PIX")) == []
    assert told(INTERFACES.replace(b" 41200 ", b" 41 ").replace(b" 3 0", b" 0 0")) == []
    assert told(LINKS.replace(b"Errors: 4", b"Errors: 0")) == []
    assert told(CARDS.replace(b"PORT_DOWN (1)", b"PORT_ACTIVE (4)")) == []
    assert len(told(STATES)) == len(told(COUNTERS)) == len(told(ROCM)) == len(told(AMD)) == 1


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
