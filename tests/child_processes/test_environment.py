"""Variables that a child process inherits from the environment."""

from __future__ import annotations

import pytest

from openai_cpu_server.child_processes.spawn import child_environment


@pytest.mark.parametrize(
    "name",
    [
        *("OCS_API_KEY", "OCS_LIMITS_URL", "OCS_JOBS_DB", "OCS_SECRETS_DIR", "OCS_ANYTHING"),
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "DATABASE_URL", "PGPASSWORD", "REDIS_URL"),
        *("AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "LLAMA_CLOUD_API_KEY", "NOTIFY_SOCKET", "SSH_AUTH_SOCK"),
        *("OTEL_EXPORTER_OTLP_HEADERS", "RAY_ADDRESS", "https_proxy", "PIP_INDEX_URL"),
        *("PYTHON_REGISTRY_TOKEN", "GGML_API_KEY", "MALLOC_SECRET", "LC_PASSWORD", "COV_auth"),
        *("OMP", "XPATH", "_", ""),
    ],
)
def test_secrets_of_any_name_are_not_inherited(name: str) -> None:
    assert name not in child_environment({name: "secret"})


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE"),
        *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME"),
        *("OPENBLAS_NUM_THREADS", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "COV_CORE_DATAFILE"),
    ],
)
def test_variables_of_native_code_and_python_are_inherited(name: str) -> None:
    assert child_environment({name: "value"})[name] == "value"


def test_an_abort_starts_no_debugger() -> None:
    assert child_environment({"GGML_NO_BACKTRACE": "0"})["GGML_NO_BACKTRACE"] == "1"


def test_the_default_is_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    monkeypatch.setenv("OCS_API_KEY", "secret")
    environment = child_environment()
    assert environment["OMP_SCHEDULE"] == "static"
    assert "OCS_API_KEY" not in environment
