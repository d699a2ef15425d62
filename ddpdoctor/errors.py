"""Errors that a user is meant to see: what happened, in what context, what to type next."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_INTERRUPTED = 130


class DoctorError(Exception):
    """A problem that ends the command with one clear message and no traceback.

    Args:
        message: what happened, one sentence.
        context: where or with what it happened, if that adds anything.
        hint: what to type or change next.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, context: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context
        self.hint = hint

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def render(self) -> str:
        """Return the text for stderr: the message, then indented context and hint lines."""
        return f"ddpdoctor: {self}"

    def _lines(self) -> list[str]:
        lines = [self.message]
        if self.context:
            lines.append(f"  {self.context}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return lines


class UsageError(DoctorError):
    """The command line or the configuration asks for something that does not exist or cannot be."""

    exit_code = EXIT_USAGE


class OutputError(DoctorError):
    """A report could not be written where it was asked for; what was seen is still printed."""

    exit_code = EXIT_FAILED
