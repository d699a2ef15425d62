"""Checks of silent failures: no rank raises, and the job may exit 0."""

from ddpdoctor_checks.job.silent.group_names import find_names_shared
from ddpdoctor_checks.job.silent.order import find_order_in_job
from ddpdoctor_checks.job.silent.teardown import find_teardown
from ddpdoctor_checks.job.silent.unwaited import find_unwaited

__all__ = ["find_names_shared", "find_order_in_job", "find_teardown", "find_unwaited"]
