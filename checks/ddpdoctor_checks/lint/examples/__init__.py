"""For codes that are found in the source: a short program that is wrong, and the same one corrected.

Pages show them; a test reads each with ``lint``.
"""

from ddpdoctor_checks.lint.examples.calls import CALLS
from ddpdoctor_checks.lint.examples.devices import DEVICES
from ddpdoctor_checks.lint.examples.files import FILES
from ddpdoctor_checks.lint.examples.launching import LAUNCHING
from ddpdoctor_checks.lint.examples.messages import MESSAGES
from ddpdoctor_checks.lint.examples.setups import SETUPS
from ddpdoctor_checks.lint.examples.training import TRAINING
from ddpdoctor_checks.lint.examples.values import VALUES

EXAMPLES: dict[str, tuple[str, str]] = {
    **CALLS,
    **DEVICES,
    **FILES,
    **LAUNCHING,
    **MESSAGES,
    **SETUPS,
    **TRAINING,
    **VALUES,
}
"""Code -> the wrong and the right program."""
