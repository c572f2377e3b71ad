"""What a person sees on stderr while a run goes on."""

from __future__ import annotations

import sys
import threading
import time

from sysmeter.cli.streams import say
from sysmeter.session import RunListener
from sysmeter.units import NS_PER_S, format_ns

_REFRESH_SECONDS = 0.5


class ConsoleListener(RunListener):
    """Notes as lines; a progress bar only on a terminal, and only where it cannot disturb the measurement."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._bar: threading.Thread | None = None

    def say(self, text: str) -> None:
        """One line on stderr."""
        say(text)

    def note(self, text: str) -> None:
        """One line on stderr, marked as worth knowing."""
        self.say(f"note: {text}")

    def window_begins(self, expected_ns: int, may_show_progress: bool) -> None:
        """One line with the expected time, or a progress bar."""
        expected_seconds = expected_ns / NS_PER_S
        length = f"about {format_ns(expected_ns)}" if expected_ns else "less than a second for each million messages"
        if not (may_show_progress and sys.stderr.isatty()) or expected_seconds < 2 * _REFRESH_SECONDS:
            why = "" if may_show_progress else " (no progress: every allowed CPU is measured)"
            self.say(f"measuring, {length}{why}")
            return
        self._bar = threading.Thread(target=self._show_progress, args=(expected_seconds,), daemon=True)
        self._bar.start()

    def window_ended(self) -> None:
        """End the progress bar, if there is one."""
        self._ended.set()
        if self._bar is not None:
            self._bar.join()

    def _show_progress(self, expected_seconds: float) -> None:
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), auto_refresh=False)
        task = progress.add_task("measuring", total=expected_seconds)
        began = time.monotonic()
        with progress:
            while not self._ended.wait(_REFRESH_SECONDS):
                progress.update(task, completed=min(time.monotonic() - began, expected_seconds))
                progress.refresh()
            progress.update(task, completed=expected_seconds)
            progress.refresh()
