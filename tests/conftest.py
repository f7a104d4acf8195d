"""Rules and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from random_model.architectures import ARCHITECTURES, Architecture

from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import put_in_front
from tests.certificates import trust_one
from tests.company import share_cores
from tests.kernels.library import KERNELS
from tests.trees import files_of_tests, package
from tests.warm import OURS

gc.disable()  # until all tests are collected: it would scan again and again objects that stay
share_cores()
trust_one()
os.environ.setdefault("OCS_CACHE_FILE", "off")  # a user's servers have no use for the cells of tests
settings.register_profile("anywhere", deadline=None)  # a busy machine is not a failure
settings.load_profile("anywhere")
put_in_front(KERNELS)  # as in an engine process, before the folders' conftests import ggml

pytest_plugins = ["tests.skips", "tests.forks"]

_SERVERS = {"architectures", "cli", "e2e", "engine_client", "fuzz", "page"}
"""Folders of tests that start processes; most files directly in `tests` do so too."""


def pytest_configure(config: pytest.Config) -> None:
    """Let signals reach child processes: a shell's background job and `nohup` make them ignored."""
    if config.getoption("numprocesses", None):
        gc.enable()
        return  # each worker does this itself, and must not inherit signals that end it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def no_ocs_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("OCS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    """The description of each tiny model; `tiny_model_path(shape=architecture.name)` is its file."""
    return ARCHITECTURES[request.param]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of a model whose words mean something; scripts/bootstrap installs it."""
    return packaged("smollm2")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The file of a model that embeds, converted; scripts/bootstrap dev installs its package."""
    return packaged("minilm")


@pytest.fixture(scope="session")
def gemma3_270m() -> Path:
    """The file of a base model with windows, joined; scripts/bootstrap dev installs its packages."""
    return packaged("gemma3-270m")


def packaged(name: str) -> Path:
    from openai_cpu_server.model_source.package import PACKAGED

    try:
        return PACKAGED[name].path()
    except StartupError as error:
        pytest.skip(str(error))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt imported modules and collected tests, which stay to the end, from garbage collection."""
    options = session.config.option
    if options.forks > 1 and not options.collectonly:
        assert OURS.parent  # one process for all forks, from which their servers come
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first: the forks take whole files in this order."""
    items.sort(key=lambda item: not _starts_processes(item))
    for item in items:
        if item.path.parent.name in ("kernels", "llama"):
            item.add_marker(pytest.mark.native)


def _starts_processes(item: pytest.Item) -> bool:
    _, *folders, _ = item.nodeid.partition("::")[0].split("/")
    return not folders or folders[0] in _SERVERS


def pytest_unconfigure() -> None:
    """Collect all garbage again, so that resources left open are closed before the summary."""
    package.cache_clear()
    files_of_tests.cache_clear()
    gc.unfreeze()
