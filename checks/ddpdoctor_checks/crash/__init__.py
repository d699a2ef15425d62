"""Checks of jobs that failed: who failed first, why, and who only followed.

One judgement over all processes (`ddpdoctor_checks.crash.judging.diagnose`) says which code it is; the modules of the
family give each code its words.
"""

# What ended the job comes first in a report whatever its place here.
from ddpdoctor_checks.crash.cause import find_cause

# isort: split
from ddpdoctor_checks.crash.devices import find_device_unset
from ddpdoctor_checks.crash.environment import find_restart_loop
from ddpdoctor_checks.crash.network import find_address_family_noise

__all__ = ["find_address_family_noise", "find_cause", "find_device_unset", "find_restart_loop"]
