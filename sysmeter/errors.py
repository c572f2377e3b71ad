"""The one tree of errors. The CLI catches :class:`SysmeterError` once, so no traceback reaches a user."""

from __future__ import annotations

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_CLAIM_FAILED = 3
EXIT_NOT_PROVEN = 4
EXIT_INTERRUPTED = 130


class SysmeterError(Exception):
    """Something the user can read and mend.

    ``message`` says what is wrong, ``hint`` what to do about it (may be empty). ``exit_code`` is the
    process's exit code when the error reaches the CLI.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SysmeterError):
    """The command's words cannot be carried out as they stand."""

    exit_code = EXIT_USAGE


class FeedFileError(SysmeterError):
    """A message file is missing, damaged or of another version."""


class DecisionsFileError(SysmeterError):
    """A decisions file cannot be written, or is missing or not sound."""


class ClaimsFileError(SysmeterError):
    """A file of claims cannot be read, is not TOML, or states what is not a claim."""


class HistogramFileError(SysmeterError):
    """A file of histograms cannot be written, or is missing or not sound."""


class RecordingError(SysmeterError):
    """A Recording cannot be written, or what is on disk is not a valid one."""


class KernelError(SysmeterError):
    """The kernel, or the means to reach it (bcc, capabilities, tracefs), refused."""


class WorkloadError(SysmeterError):
    """The measured child process failed, or died."""
