"""The process in which ``ddpdoctor.check()`` runs; see `ddpdoctor.api.checking.check_apart`."""

from __future__ import annotations

import sys
from pathlib import Path

from ddpdoctor.api.checking import answer_request

if __name__ == "__main__":
    answer_request(sys.stdin.read(), Path(sys.argv[1]))
