"""The rules of the test tiers, and the settings all tests share.

``kernel`` tests (all of ``tests/kernel``, and what is marked so elsewhere) need root, bcc and real kernel
events. Without root they are deselected, with a line that says so. As root they must run: under
``scripts/test`` or in CI a skipped one counts as failed, because a skip there would hide that nothing was
proved.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator

KERNEL_TESTS = Path(__file__).parent / "kernel"

IS_ROOT = os.geteuid() == 0
KERNEL_MUST_RUN = IS_ROOT and bool(os.environ.get("SYSMETER_TEST_STRICT") or os.environ.get("CI"))

# Hosts stall for milliseconds (that is this project's subject), so no example has a deadline.
settings.register_profile("sysmeter", deadline=None, print_blob=True)
settings.load_profile("sysmeter")

_n_deselected = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(KERNEL_TESTS):
            item.add_marker(pytest.mark.kernel)
    if IS_ROOT:
        return
    kernel = [item for item in items if item.get_closest_marker("kernel")]
    if kernel:
        items[:] = [item for item in items if not item.get_closest_marker("kernel")]
        config.hook.pytest_deselected(items=kernel)
        config.stash[_n_deselected] = len(kernel)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    n_deselected = config.stash.get(_n_deselected, 0)
    if n_deselected:
        terminalreporter.write_line(
            f"kernel tier not run: it needs root ({n_deselected} tests deselected); run: sudo scripts/test",
            yellow=True,
        )


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if KERNEL_MUST_RUN and report.skipped and not expected_to_fail and item.get_closest_marker("kernel"):
        report.outcome = "failed"
        report.longrepr = f"a kernel test must run here, but it was skipped: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if KERNEL_MUST_RUN and report.skipped and collector.path.is_relative_to(KERNEL_TESTS):
        report.outcome = "failed"
        report.longrepr = f"kernel tests must run here, but were skipped: {_reason(report.longrepr)}"
    return report
