"""Shared, missing, unsupported and faulty devices; libraries that conflict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Evidence,
    Library,
    RankMessage,
    RankSet,
    SmokeResult,
)
from ddpdoctor.facts.xids import XIDS
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    make_world,
)
from ddpdoctor_checks import backends
from ddpdoctor_checks.backends.hardware import NO_SIGNS
from ddpdoctor_checks.backends.support import supports
from tests.checks.gpu_worlds import (
    H200,
    codes_in_order,
    make_gpu_world,
    with_device,
    with_launch,
    with_rank,
)


def test_two_ranks_on_one_gpu_are_found_by_its_uuid() -> None:
    world = make_gpu_world(4)
    world = with_rank(world, 3, device_uuid=world.ranks[1].device_uuid)
    found = assert_finds(backends.find_device_shared, world, code="BKD003", severity="error")
    assert found.message == f"Ranks 1, 3 on node-0 use one GPU: NVIDIA H200 1 ({H200}-0-1)."
    assert str(found.ranks) == "1,3"
    assert "set_device(local_rank)" in (found.fix[-1].code or "")


def test_equal_indices_of_different_gpus_are_no_sharing() -> None:
    world = make_gpu_world(4)
    ranks = tuple(
        replace(
            each, device="cuda:0", visible_devices=1, variables={"CUDA_VISIBLE_DEVICES": str(each.local_rank)}
        )
        for each in world.ranks
    )
    assert_passes(backends.find_device_shared, replace(world, ranks=ranks))


def test_a_trimmed_list_of_visible_devices_is_the_first_fix() -> None:
    world = make_gpu_world(2)
    ranks = tuple(
        replace(each, device="cuda:0", device_uuid=f"{H200}-0-0", variables={"CUDA_VISIBLE_DEVICES": "0"})
        for each in world.ranks
    )
    found = assert_finds(backends.find_device_shared, replace(world, ranks=ranks))
    assert found.fix[0].command == "unset CUDA_VISIBLE_DEVICES"


def test_sharing_without_nccl_is_a_warning() -> None:
    world = make_gpu_world(2)
    world = with_launch(with_rank(world, 1, device_uuid=f"{H200}-0-0"), backend="gloo")
    assert_finds(backends.find_device_shared, world, severity="warning")


def test_sharing_is_unknown_without_uuids_and_skipped_on_cpus() -> None:
    world = make_gpu_world(2)
    ranks = tuple(replace(each, device_uuid=None) for each in world.ranks)
    assert "ranks 0-1" in assert_status(backends.find_device_shared, replace(world, ranks=ranks), "unknown")
    assert_status(backends.find_device_shared, make_world(1, 2), "skipped")


def test_sharing_explains_that_nccl_fails() -> None:
    world = with_rank(make_gpu_world(2), 1, device_uuid=f"{H200}-0-0")
    text = "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    failed = replace(
        world.backends[0],
        collective=RankSet(),
        failures=(RankMessage(RankSet.span(2), f"DistBackendError: {text}"),),
    )
    assert codes_in_order(replace(world, backends=(failed,)))[:2] == [
        ("BKD003", "cause"),
        ("BKD002", "consequence"),
    ]


def test_local_ranks_beyond_the_visible_devices_are_named_per_node() -> None:
    world = make_gpu_world(4, 2)
    ranks = tuple(
        replace(each, visible_devices=3, variables={"CUDA_VISIBLE_DEVICES": "0,1,2"})
        if each.node == 1
        else each
        for each in world.ranks
    )
    found = assert_finds(backends.find_device_out_of_range, replace(world, ranks=ranks), code="BKD004")
    assert found.message == (
        "Rank 7 on node-1 (local rank 3) has no GPU: 3 are visible there (CUDA_VISIBLE_DEVICES=0,1,2)."
    )
    assert (str(found.ranks), found.nodes) == ("7", ("node-1",))
    assert found.fix[0].command == "torchrun --nproc-per-node 3 train.py"


def test_devices_out_of_range_do_not_concern_cpu_ranks() -> None:
    world = make_world(1, 4)
    ranks = tuple(replace(each, visible_devices=1) for each in world.ranks)
    assert_status(backends.find_device_out_of_range, replace(world, ranks=ranks), "skipped")


# -- BKD005 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arches", "capability", "expected"),
    [
        (("sm_80",), "8.0", True),
        (("sm_80",), "8.6", True),  # same major, higher minor
        (("sm_86",), "8.0", False),  # lower minor
        (("sm_80",), "9.0", False),  # cubins do not cross majors
        (("sm_80", "compute_80"), "9.0", True),  # PTX does
        (("compute_90",), "8.9", False),
        (("sm_90a",), "9.0", True),
        (("sm_90a",), "9.1", False),  # architecture-specific
        (("sm_100f",), "10.3", True),
        (("sm_120",), "12.1", True),
        ((), "9.0", False),
        (("gfx90a", "gfx942"), "gfx942:sramecc+", True),
        (("gfx90a",), "gfx1100", False),
    ],
)
def test_compatibility_follows_nvidias_rules(
    arches: tuple[str, ...], capability: str, expected: bool
) -> None:
    assert supports(arches, capability) is expected


def without_smoke(world: Evidence) -> Evidence:
    return replace(world, smoke=())


def test_a_gpu_without_kernels_is_named_with_the_architectures() -> None:
    world = without_smoke(with_device(make_gpu_world(2), 1, name="Tesla K80", capability="3.7"))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005", severity="error")
    assert "Rank 1 on node-0 cannot use Tesla K80 (compute capability 3.7)" in found.message
    assert "sm_75, sm_80" in found.message
    assert str(found.ranks) == "1"


def test_an_old_driver_is_named_with_what_is_needed() -> None:
    world = make_gpu_world(2)
    devices = tuple(replace(each, driver="470.82.01") for each in world.nodes[0].devices)
    world = without_smoke(replace(world, nodes=(replace(world.nodes[0], devices=devices),)))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005")
    assert (
        "driver 470.82.01 is older than CUDA 12.8 of this PyTorch build allows (at least 525.60.13)"
        in found.message
    )
    assert "update the NVIDIA driver" in found.fix[0].text


def test_a_device_that_has_computed_is_supported_whatever_the_tables_say() -> None:
    """The cuda-compat package lets an older driver serve a newer runtime."""
    world = make_gpu_world(2)
    devices = tuple(replace(each, driver="470.82.01") for each in world.nodes[0].devices)
    assert_passes(
        backends.find_device_unsupported, replace(world, nodes=(replace(world.nodes[0], devices=devices),))
    )


def test_no_kernel_image_is_this_code_and_no_fault_of_the_device() -> None:
    text = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    world = replace(make_gpu_world(2), smoke=(SmokeResult(0, "cuda:1", False, error=text),))
    found = assert_finds(backends.find_device_unsupported, world, code="BKD005")
    assert "no kernel image" in found.message
    assert_passes(backends.find_device_unusable, world)
    assert_passes(backends.find_device_faulty, world)


def test_support_is_unknown_without_capability() -> None:
    world = make_gpu_world(2)
    devices = tuple(replace(each, capability=None) for each in world.nodes[0].devices)
    world = without_smoke(replace(world, nodes=(replace(world.nodes[0], devices=devices),)))
    assert_status(backends.find_device_unsupported, world, "unknown")


# -- BKD006 ----------------------------------------------------------------------------------------

WHEEL = "/v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
OWN = Library("libnccl", WHEEL, "2.27.3", "loaded")
SYSTEM = Library("libnccl", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.18.5", "2.18.5", "search-path")


def judge_libraries(*libraries: Library, **changes: Any) -> Evidence:
    world = make_gpu_world(2)
    return replace(world, nodes=(replace(world.nodes[0], libraries=libraries, **changes),))


def test_two_loaded_libraries_conflict() -> None:
    world = judge_libraries(OWN, replace(SYSTEM, source="loaded"))
    found = assert_finds(backends.find_library_conflict, world, code="BKD006", severity="warning")
    assert "two libraries are loaded" in found.message
    assert "2.27.3" in found.message
    assert "2.18.5" in found.message
    assert (found.nodes, str(found.ranks)) == (("node-0",), "0-1")


def test_libraries_that_nobody_had_time_to_look_for_are_not_absent() -> None:
    world = judge_libraries(libraries_note="searching for libraries took over 5 s")
    assert "took over 5 s" in assert_status(backends.find_library_conflict, world, "unknown")


def test_two_wheels_that_overwrite_each_other_conflict() -> None:
    wheels = [Library("libnccl", WHEEL, version, "wheel") for version in ("2.21.5", "2.27.3")]
    found = assert_finds(backends.find_library_conflict, judge_libraries(*wheels))
    assert "two distributions" in found.message
    assert "torch==2.8.0" in (found.fix[0].command or "")


def test_a_loaded_library_that_is_not_torchs_own_conflicts() -> None:
    world = judge_libraries(replace(SYSTEM, source="loaded"), Library("libnccl", WHEEL, "2.27.3", "wheel"))
    found = assert_finds(backends.find_library_conflict, world)
    assert found.fix[0].command == "unset LD_LIBRARY_PATH LD_PRELOAD"


def test_a_search_path_that_comes_first_conflicts() -> None:
    variables = {"LD_LIBRARY_PATH": "/opt/x:/usr/lib/x86_64-linux-gnu/"}
    world = judge_libraries(SYSTEM, Library("libnccl", WHEEL, "2.27.3", "wheel"), variables=variables)
    assert "LD_LIBRARY_PATH puts" in assert_finds(backends.find_library_conflict, world).message


@pytest.mark.parametrize(
    "libraries",
    [
        (OWN,),
        (OWN, SYSTEM),  # lies there, nothing loads it
        (replace(SYSTEM, source="loaded"),),  # a torch built against the system's
        (
            OWN,
            Library("libnccl-net", "/opt/aws/lib/libnccl-net.so", "1.9", "loaded"),
        ),  # a plug-in, no second NCCL
        (OWN, replace(OWN, path=WHEEL.replace("/lib/libnccl", "/lib/./libnccl"))),  # one file
    ],
)
def test_one_library_in_use_is_no_conflict(libraries: tuple[Library, ...]) -> None:
    assert_passes(backends.find_library_conflict, judge_libraries(*libraries))


def test_a_conflict_that_no_rank_uses_is_a_note() -> None:
    world = with_launch(judge_libraries(OWN, replace(SYSTEM, source="loaded")), backend="gloo")
    assert_finds(backends.find_library_conflict, world, severity="info")


def test_machines_without_nccl_are_skipped() -> None:
    assert_status(backends.find_library_conflict, make_world(1, 2), "skipped")


# -- BKD007 and BKD010 -----------------------------------------------------------------------------


def test_a_copy_that_returns_other_bytes_names_the_pair() -> None:
    world = make_gpu_world(4)
    bad = SmokeResult(
        0, "cuda:1", False, kind="peer-copy", peer="cuda:3", error="copy: 512 of 8388608 elements differ"
    )
    world = replace(world, smoke=(*world.smoke, bad))
    found = assert_finds(backends.find_peer_copy_broken, world, code="BKD007", severity="error")
    assert found.pairs == (("node-0 cuda:1", "node-0 cuda:3"),)
    assert (str(found.ranks), found.fix[0].command) == ("1,3", "export NCCL_P2P_DISABLE=1")
    assert_passes(backends.find_device_faulty, world)
    assert_passes(backends.find_device_unusable, world)


def test_nccl_that_works_only_without_peers_is_this_and_not_merely_a_failure() -> None:
    world = make_gpu_world(2)
    failed = replace(
        world.backends[0],
        collective=RankSet(),
        failures=(RankMessage(RankSet.span(2), "DistBackendError: unhandled cuda error"),),
        peer_to_peer_off=RankSet.span(2),
    )
    world = replace(world, backends=(failed,))
    found = assert_finds(backends.find_peer_copy_broken, world, code="BKD007")
    assert "passes there with NCCL_P2P_DISABLE=1" in found.message
    assert found.pairs == (("node-0 cuda:0", "node-0 cuda:1"),)
    assert codes_in_order(world)[:2] == [("BKD007", "cause"), ("BKD002", "consequence")]


def test_nccl_that_fails_without_peers_too_is_not_blamed_on_them() -> None:
    world = make_gpu_world(2)
    failed = replace(
        world.backends[0],
        failures=(RankMessage(RankSet.span(2), "DistBackendError: no"),),
        peer_to_peer_off=RankSet([0]),
    )
    assert_passes(backends.find_peer_copy_broken, replace(world, backends=(failed,)))


def test_copies_that_were_not_tried_are_unknown_and_one_gpu_is_skipped() -> None:
    world = make_gpu_world(2)
    assert_status(backends.find_peer_copy_broken, replace(world, smoke=world.smoke[:1]), "unknown")
    single = make_gpu_world(1)
    assert_status(backends.find_peer_copy_broken, replace(single, smoke=single.smoke[:1]), "skipped")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrectable ECC errors"),
        ({"xid": ("Xid 79, pid='<unknown>', GPU has fallen off the bus. (1 h ago)",)}, "fallen off the bus"),
        ({"xid": ("NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE",)}, "Xid (PCI:0000:3b:00): 48"),
        ({"state": "[GPU requires reset]"}, "nvidia-smi reports [GPU requires reset]"),
        (
            {"state": "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error"},
            "Unknown Error",
        ),
        ({"state": "ERR!"}, "ERR!"),
    ],
)
def test_signs_of_a_faulty_device(changes: dict[str, Any], words: str) -> None:
    found = assert_finds(
        backends.find_device_faulty,
        with_device(make_gpu_world(2), 1, **changes),
        code="BKD010",
        severity="error",
    )
    assert words in found.message
    assert found.message.startswith("GPU 1 (NVIDIA H200")
    assert (found.nodes, str(found.ranks)) == (("node-0",), "1")
    assert found.fix[1].command == "sudo nvidia-smi --gpu-reset -i 1"


def test_contained_and_unknown_xids_are_warnings() -> None:
    for number in (32, 63, 94, 9999):
        world = with_device(make_gpu_world(2), 0, xid=(f"Xid {number}, pid=1",))
        assert_finds(backends.find_device_faulty, world, code="BKD010", severity="warning")


def test_amdgpus_messages_are_faults_and_a_reset_alone_a_warning() -> None:
    reset = "amdgpu: GPU reset begin! (2 min ago)"
    bad = "amdgpu: socket: 0, die: 0 2 uncorrectable hardware errors detected in umc block"
    for messages, severity in (((reset,), "warning"), ((bad, reset), "error")):
        world = with_device(make_gpu_world(2), 0, kind="rocm", xid=messages)
        found = assert_finds(backends.find_device_faulty, world, code="BKD010", severity=severity)
        assert f"kernel: {messages[0]}" in found.message
        assert found.fix[1].command == "sudo rocm-smi -d 0 --gpureset"


def test_a_gpu_that_lacks_the_links_of_all_others_is_a_warning() -> None:
    world = make_gpu_world(4)
    for gpu in range(4):
        links = {str(peer): "NODE" if 2 in (gpu, peer) else "NV18" for peer in range(4) if peer != gpu}
        world = with_device(world, gpu, links=links)
    found = assert_finds(backends.find_device_faulty, world, code="BKD010", severity="warning")
    assert "its links are NODE to all others, which have NV18" in found.message
    assert str(found.ranks) == "2"


@pytest.mark.parametrize("number", sorted(number for kind in NO_SIGNS for number in XIDS[kind]))
def test_xids_of_programs_and_those_that_follow_others_say_nothing_of_the_device(number: int) -> None:
    assert_passes(
        backends.find_device_faulty, with_device(make_gpu_world(2), 0, xid=(f"Xid {number}, pid=1",))
    )


@pytest.mark.parametrize(
    ("action", "faulty"),
    [("0x0 (None) to 0x2 (Node Reboot Required)", True), ("0x1 (GPU Reset Required) to 0x0 (None)", False)],
)
def test_a_recovery_that_the_driver_asks_for_is_a_fault(action: str, faulty: bool) -> None:
    text = f"Xid 154, GPU recovery action changed from {action} (3 min ago)"
    world = with_device(make_gpu_world(2), 0, xid=(text,))
    if faulty:
        assert_finds(backends.find_device_faulty, world, code="BKD010", severity="error")
    else:
        assert_passes(backends.find_device_faulty, world)


def test_permissions_that_hide_counters_are_no_fault() -> None:
    world = with_device(make_gpu_world(2), 0, ecc_uncorrected=None, state="[Insufficient Permissions]")
    assert_passes(backends.find_device_faulty, world)


def test_a_process_that_cannot_be_killed_is_a_faulty_device() -> None:
    world = make_gpu_world(2)
    stuck = SmokeResult(0, "cuda:1", False, error="no answer", killable=False)
    found = assert_finds(backends.find_device_faulty, replace(world, smoke=(stuck,)), code="BKD010")
    assert "did not die of SIGKILL" in found.message
    assert str(found.ranks) == "1"


def test_a_processor_that_computes_wrongly_is_a_fault_too() -> None:
    bad = SmokeResult(
        0, "cpu", False, error="product of two matrices: 3 of 65536 elements differ, the first at 4"
    )
    found = assert_finds(backends.find_device_faulty, make_world(1, 2, smoke=(bad,)), code="BKD010")
    assert "65536 elements differ" in found.message
    assert str(found.ranks) == "0-1"
