"""In continuous integration a test that is skipped has failed, unless its reason is listed here."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MAY_BE_SKIPPED = {
    "tests/deploy/test_alerts.py": "promtool comes with Prometheus, which is not on every machine",
    "tests/deploy/test_proxies.py": "nginx and Caddy are not on every machine",
    "tests/deploy/test_unit.py": "systemd is not on every machine",
    "tests/e2e/test_agent_frameworks.py": "the frameworks are in an environment of their own",
    "tests/e2e/test_evaluation.py": "lm-evaluation-harness is installed when it runs",
    "tests/e2e/test_wires.py": "proxies, Java and Go are not on every machine",
    "tests/kernels/test_emulated.py": "headers and emulators of other CPUs are not on every machine",
    "tests/kernels/test_levels.py": "an emulator of other CPUs is not on every machine",
    "tests/kernels/test_library.py": "kernels for AVX2 are compiled again only where a CPU has more",
    "tests/llama/test_cores.py": "on one core, or where threads cannot be bound, there is nothing to bind",
    "tests/observe/test_documents.py": "only Linux reports a process's figures",
    "tests/page/test_accessibility.py": "axe comes with npm, which is not on every machine",
    "tests/page/test_build.py": "npm and its packages are not on every machine",
    "tests/structured/test_maskbench.py": "its cases are not part of this repository",
}  # test file -> why some of its tests may be skipped even in continuous integration


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    is_expected_failure = hasattr(report, "wasxfail")
    file = report.nodeid.partition("::")[0]
    if report.skipped and not is_expected_failure and os.environ.get("CI") and file not in MAY_BE_SKIPPED:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped, which tests/skips.py does not allow: {report.longrepr}"
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: pytest's own wrapper turns exceptions into skips
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
