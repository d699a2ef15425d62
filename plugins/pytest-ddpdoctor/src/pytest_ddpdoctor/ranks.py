"""What a rank runs: pytest with one test, whose exception is raised once more, for torch and ddpdoctor to see."""

from __future__ import annotations

import os
import sys
from typing import Any

from pytest_ddpdoctor import VARIABLE


class Keeper:
    """Keeps the first exception of a test, its fixtures included."""

    def __init__(self) -> None:
        self.exception: BaseException | None = None

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Keep what was raised; a skip is none."""
        import pytest

        raised = None if call.excinfo is None else call.excinfo.value
        if raised is not None and not isinstance(raised, pytest.skip.Exception):
            self.exception = self.exception or raised


def main(arguments: list[str]) -> int:
    """Run the test; pytest's exit code, or the exception that it met."""
    import pytest

    os.environ[VARIABLE] = os.environ.get("RANK", "0")
    keeper = Keeper()
    code = pytest.main(arguments, plugins=[keeper])
    if keeper.exception is not None:
        raise keeper.exception
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
