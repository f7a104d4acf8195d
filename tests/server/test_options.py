"""Options of the API and of jobs that are computed from the settings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

import openai_cpu_server
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import OPTIONS_OF_SERVERS, Settings
from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.server.options import api_options, job_options
from openai_cpu_server.server.run import embedding_model, run_server
from tests.api.fake_engine import FakeEngine
from tests.api.serving import named


def test_without_settings_the_api_has_its_own_defaults() -> None:
    options = api_options(read_settings([]))
    assert not options.is_admin_open  # the client may be a proxy on this machine
    depends_on_settings = {"hosts": None, "is_admin_open": True, "scheduling": None}
    assert msgspec.structs.replace(options, **depends_on_settings) == ApiOptions()
    assert job_options(read_settings([]), "m") == JobOptions(model="m")


def test_options_reach_the_api_by_equal_and_other_names() -> None:
    arguments = (
        "--max-choices 3 --no-page --max-file-mb 2 --request-timeout 5 --lenient --max-queue 7 --api-key k"
    )
    options = api_options(read_settings(arguments.split()))
    assert (options.max_choices, options.page, options.lenient) == (3, False, True)
    assert (options.max_file_bytes, options.request_timeout_s) == (2 * 1024 * 1024, 5)
    assert options.api_key == "k"
    assert options.isolate_by_key
    assert options.scheduling.max_queue == 7


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [
        ([], {"localhost", "127.0.0.1"}),
        (["--host", "0.0.0.0"], None),  # the server does not know its names
        (["--host", "0.0.0.0", "--allowed-host", "llm.example"], {"localhost", "0.0.0.0", "llm.example"}),
    ],
)
def test_names_of_the_server(arguments: list[str], hosts: set[str] | None) -> None:
    assert api_options(read_settings(arguments)).hosts == hosts


def test_options_that_only_a_running_server_reads_are_options_of_servers() -> None:
    """Commands without a server refuse these options, so a new option must be in the list."""
    running = Path(inspect.getfile(run_server))
    package = Path(openai_cpu_server.__file__).parent
    elsewhere = [path.read_text() for path in package.rglob("*.py") if path != running]
    read_elsewhere = set(re.findall(r"\.(\w+)\b(?!\()", "".join(elsewhere)))
    read_here_only = set(re.findall(r"\bsettings\.(\w+)", running.read_text())) - read_elsewhere
    assert "drain_seconds" in read_here_only
    assert read_here_only & Settings.model_fields.keys() <= OPTIONS_OF_SERVERS


@pytest.mark.parametrize(
    ("name", "reason"), [(None, "no model embeds: add --model minilm"), ("x", "unknown model 'x'")]
)
def test_semantic_cache_needs_an_embedding_model(name: str | None, reason: str) -> None:
    with pytest.raises(StartupError, match=f"--semantic-cache.*{reason}"):
        embedding_model(ModelRegistry([named(FakeEngine(), "m")]), name)
