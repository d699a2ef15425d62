"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell lets what it starts in the background ignore interrupts, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
