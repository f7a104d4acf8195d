"""What the API and the jobs are told of the settings."""

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


def test_without_settings_the_api_is_as_its_own_options_have_it() -> None:
    options = api_options(read_settings([]))
    assert not options.is_admin_open  # a proxy on this machine may call
    depends_on_settings = {"hosts": None, "is_admin_open": True, "scheduling": None}
    assert msgspec.structs.replace(options, **depends_on_settings) == ApiOptions()
    assert job_options(read_settings([]), "m") == JobOptions(model="m")


def test_options_reach_the_api_by_name_and_in_other_words() -> None:
    given = ["--max-choices", "3", "--no-page", "--max-file-mb", "2", "--request-timeout", "5", "--lenient"]
    told = api_options(read_settings([*given, "--max-queue", "7", "--api-key", "k"]))
    assert (told.max_choices, told.page, told.lenient) == (3, False, True)
    assert (told.max_file_bytes, told.request_timeout_s) == (2 * 1024 * 1024, 5)
    assert told.api_key == "k"
    assert told.isolate_by_key
    assert told.scheduling.max_queue == 7


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ([], {"localhost", "127.0.0.1"}),
        (["--host", "0.0.0.0"], None),  # the server does not know its names
        (["--host", "0.0.0.0", "--allowed-host", "llm.example"], {"localhost", "0.0.0.0", "llm.example"}),
    ],
)
def test_names_of_the_server(given: list[str], hosts: set[str] | None) -> None:
    assert api_options(read_settings(given)).hosts == hosts


def test_what_only_a_running_server_reads_is_an_option_of_servers() -> None:
    """So a new one is refused by commands that have no server, as the others are."""
    running = Path(inspect.getfile(run_server))
    package = Path(openai_cpu_server.__file__).parent
    elsewhere = [path.read_text() for path in package.rglob("*.py") if path != running]
    known_elsewhere = set(re.findall(r"\.(\w+)\b(?!\()", "".join(elsewhere)))
    only_here = set(re.findall(r"\bsettings\.(\w+)", running.read_text())) - known_elsewhere
    assert "drain_seconds" in only_here
    assert only_here & Settings.model_fields.keys() <= OPTIONS_OF_SERVERS


@pytest.mark.parametrize(
    ("name", "why"), [(None, "no model embeds: add --model minilm"), ("x", "unknown model 'x'")]
)
def test_a_model_that_compares_questions_must_be_there(name: str | None, why: str) -> None:
    with pytest.raises(StartupError, match=f"--semantic-cache.*{why}"):
        embedding_model(ModelRegistry([named(FakeEngine(), "m")]), name)
