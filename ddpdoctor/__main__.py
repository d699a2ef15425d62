"""``python -m ddpdoctor``."""

from __future__ import annotations

import sys

from ddpdoctor.cli import main

if __name__ == "__main__":
    sys.exit(main())
