"""Variables of the toggles under the names of each torch, and what the user has set himself."""

from __future__ import annotations

import pytest

from ddpdoctor.watch.launch.toggles import (
    BLOCKING,
    COSTS,
    DETAIL,
    INFO,
    apply_toggles,
    choose_variables,
    find_torch,
)


def test_names_are_those_of_the_torch_that_is_there() -> None:
    newest = choose_variables(DETAIL, "2.13.0+cpu", "/run/recorder-")
    assert newest == choose_variables(DETAIL, None, "/run/recorder-")
    assert newest["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert newest["TORCH_FR_DUMP_TEMP_FILE"] == "/run/recorder-"
    older = choose_variables(DETAIL, "2.4.1", "/run/recorder-")
    assert "TORCH_FR_BUFFER_SIZE" not in older
    assert older["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert older["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/run/recorder-"
    assert older["TORCH_NCCL_DESYNC_DEBUG"] == "1"
    oldest = choose_variables(DETAIL, "2.1.2", "")
    assert oldest["NCCL_DESYNC_DEBUG"] == "1"
    assert not any(name.startswith("TORCH_NCCL_D") and name.endswith(("DEBUG", "TIMEOUT")) for name in oldest)


@pytest.mark.parametrize("toggle", [BLOCKING, INFO, DETAIL])
def test_each_toggle_has_its_variables_and_its_cost(toggle: str) -> None:
    assert choose_variables(toggle, find_torch(), "x")
    assert COSTS[toggle]


def test_amds_torch_has_a_switch_of_its_own() -> None:
    assert choose_variables(BLOCKING, "2.9.0+cu128", "") == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert choose_variables(BLOCKING, None, "") == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert choose_variables(BLOCKING, "2.9.0+rocm6.4", "") == {"AMD_SERIALIZE_KERNEL": "3"}


def test_what_the_user_set_is_kept_under_either_name() -> None:
    mine = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_TRACE_BUFFER_SIZE": "99", "PATH": "/bin"}
    applied = apply_toggles(
        mine, {"NCCL_DEBUG": "INFO", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_CPP_LOG_LEVEL": "INFO"}
    )
    assert applied.kept == {"NCCL_DEBUG": "WARN", "TORCH_NCCL_TRACE_BUFFER_SIZE": "99"}
    assert applied.added == {"TORCH_CPP_LOG_LEVEL": "INFO"}
    assert applied.environ == {**mine, "TORCH_CPP_LOG_LEVEL": "INFO"}
    newer = apply_toggles({"TORCH_FR_BUFFER_SIZE": "5"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"})
    assert newer.kept == {"TORCH_FR_BUFFER_SIZE": "5"}
    same = apply_toggles({"CUDA_LAUNCH_BLOCKING": "1"}, {"CUDA_LAUNCH_BLOCKING": "1"})
    assert (same.added, same.kept) == ({}, {})
