"""For codes that are found in the source: a short program that is wrong, and the same one corrected.

Pages show them; a test reads each with ``lint``.
"""

from ddpdoctor_checks.lint.examples.calls import CALLS
from ddpdoctor_checks.lint.examples.files import FILES
from ddpdoctor_checks.lint.examples.launching import LAUNCHING
from ddpdoctor_checks.lint.examples.training import TRAINING

EXAMPLES: dict[str, tuple[str, str]] = {**CALLS, **TRAINING, **FILES, **LAUNCHING}
"""Code -> the wrong and the right program."""
