"""What a child process inherits of the environment."""

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
def test_secrets_stay_behind_whatever_they_are_called(name: str) -> None:
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
def test_what_native_code_and_python_need_passes(name: str) -> None:
    assert child_environment({name: "kept"})[name] == "kept"


def test_an_abort_starts_no_debugger() -> None:
    assert child_environment({"GGML_NO_BACKTRACE": "0"})["GGML_NO_BACKTRACE"] == "1"


def test_it_is_this_process_s_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    monkeypatch.setenv("OCS_API_KEY", "secret")
    found = child_environment()
    assert found["OMP_SCHEDULE"] == "static"
    assert "OCS_API_KEY" not in found
