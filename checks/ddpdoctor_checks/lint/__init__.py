"""Checks of source that was read and not run: what ranks would do differently."""

from ddpdoctor_checks.lint.findings import find_groups_uneven, find_uneven_calls

__all__ = ["find_groups_uneven", "find_uneven_calls"]
