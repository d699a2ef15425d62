"""``python -m ddpdoctor_export``."""

import sys

from ddpdoctor_export import main

sys.exit(main())
