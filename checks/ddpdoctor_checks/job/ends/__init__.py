"""Checks of jobs that failed: what each code says of an end, in whose words, and what to do.

One judgement over all processes (`ddpdoctor_checks.job.blame.judging.diagnose`) says which code it is; the modules
here give each code its words.
"""

# What ended the job comes first in a report whatever its place here.
from ddpdoctor_checks.job.ends.cause import find_cause

# isort: split
from ddpdoctor_checks.job.ends.backend_errors import find_device_unset
from ddpdoctor_checks.job.ends.known_defects import find_known_defects
from ddpdoctor_checks.job.ends.launch_errors import find_restart_loop
from ddpdoctor_checks.job.ends.launch_size import find_small_launch
from ddpdoctor_checks.job.ends.network_errors import find_address_family_noise

__all__ = [
    "find_address_family_noise",
    "find_cause",
    "find_device_unset",
    "find_known_defects",
    "find_restart_loop",
    "find_small_launch",
]
