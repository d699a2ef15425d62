"""Checks of the family BKD: backends, devices, and stages that were cut."""

from ddpdoctor_checks.backends.availability import find_backend_failed, find_backend_unavailable
from ddpdoctor_checks.backends.devices import find_device_out_of_range, find_device_shared
from ddpdoctor_checks.backends.endings import find_rank_died, find_stage_error
from ddpdoctor_checks.backends.hardware import find_device_faulty, find_device_unusable, find_peer_copy_broken
from ddpdoctor_checks.backends.libraries import find_library_conflict
from ddpdoctor_checks.backends.stages import find_stage_timed_out
from ddpdoctor_checks.backends.support import find_device_unsupported

__all__ = [
    "find_backend_failed",
    "find_backend_unavailable",
    "find_device_faulty",
    "find_device_out_of_range",
    "find_device_shared",
    "find_device_unsupported",
    "find_device_unusable",
    "find_library_conflict",
    "find_peer_copy_broken",
    "find_rank_died",
    "find_stage_error",
    "find_stage_timed_out",
]
