"""Keys of a real server: a file that changes while it serves, TLS, limits in Redis, a log without
secrets.

Access to all routes: tests/api/test_access_matrix.py. Wrong files: tests/http/test_keys.py. Prompts of other
keys: tests/api/test_cache_routes.py.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.serving import key_file, sdk, tiny_server
from tests.hub_stand_in import Repo
from tests.hub_stand_in import running as hub_running
from tests.redis_server import RedisServer
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S
from tests.warm import run

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def make_key(name: str, *more: str) -> tuple[str, str]:
    """Return a new key of the command and its lines for the file."""
    printed = run("key", name)
    assert printed.returncode == 0
    return printed.stderr.split()[-1], "\n".join((printed.stdout.strip(), *more, ""))


def complete(client: openai.OpenAI) -> openai.types.Completion:
    return client.completions.create(model="tiny", prompt="a", max_tokens=2)


def test_keys_change_while_the_server_serves_and_nothing_secret_is_logged(tmp_path: Path) -> None:
    """A stream continues when its key is removed."""
    ann, ann_lines = make_key("ann", "requests_per_minute = 1000")
    bob, bob_lines = make_key("bob", "admin = true")
    path = tmp_path / "keys.toml"
    path.write_text(ann_lines)
    with tiny_server("--api-keys", str(path), "--log-level", "debug") as server:
        with sdk(server, ann) as as_ann, sdk(server, bob) as as_bob:
            raw = as_ann.completions.with_raw_response.create(model="tiny", prompt="a", max_tokens=2)
            assert raw.headers["x-ratelimit-remaining-requests"] == "999"
            with pytest.raises(openai.PermissionDeniedError):
                as_ann.delete("/cache", cast_to=object)
            with pytest.raises(openai.AuthenticationError):
                complete(as_bob)
            assert server.get("/health").status_code == 200

            stream = as_ann.completions.create(
                model="tiny", prompt="a", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            path.write_text(bob_lines)
            os.kill(server.process.pid, signal.SIGHUP)
            server.wait_for("(1 API keys read)")
            *_, last = stream
            assert last.choices[0].finish_reason == "length"
            assert complete(as_bob).choices
            as_bob.delete("/cache", cast_to=object)
            with pytest.raises(openai.AuthenticationError):
                complete(as_ann)

            path.write_text(ann_lines + "[keys.broken")
            os.kill(server.process.pid, signal.SIGHUP)
            server.wait_for("(the keys are unchanged: .*keys.toml)")
            assert complete(as_bob).choices
        server.get("/v1/models", headers={"authorization": f"Basic {ann}"})
        server.get("/v1/models", params={"key": ann})
    log = "".join(server.lines)
    assert "POST /v1/completions" in log
    assert ann not in log
    assert bob not in log


def test_sighup_during_the_models_download_waits_for_its_end(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys.toml", {"ann": ""})
    with hub_running({"acme/tiny": Repo({"tiny.gguf": tiny_model_path().read_bytes()})}) as hub:
        hub.stall_after = 1000
        options = ("--model", "hf:acme/tiny/tiny.gguf", "--api-keys", str(path))
        server = ServerProcess(*options, env=hub.environment(tmp_path, HF_HUB_DISABLE_TELEMETRY="1"))
        try:
            assert hub.stalled.wait(DEADLINE_S)
            os.kill(server.process.pid, signal.SIGHUP)
            hub.released.set()
            server.wait_for("(1 API keys read)")
            server.wait_for("(ready): ")
        finally:
            server.stop(signal.SIGTERM)


def test_https_and_sighup_without_a_key_file(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-passout", "pass:open sesame"]
    command += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    options = (f"--ssl-certfile={cert}", f"--ssl-keyfile={key}", "--ssl-keyfile-password=open sesame")
    server = tiny_server(*options, "--api-key", "hunter2")
    try:
        url = "https://127.0.0.1:" + server.wait_for(r"listening on https://127\.0\.0\.1:(\d+)")
        server.wait_for("(ready): ")
        os.kill(server.process.pid, signal.SIGHUP)
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted, headers={"x-api-key": "hunter2"}, timeout=DEADLINE_S) as http:
            body = {"prompt": "a", "max_tokens": 3, "stream": True}
            assert "data: [DONE]" in http.post(url + "/v1/completions", json=body).text
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/ready", timeout=DEADLINE_S)  # its certificate is not trusted
        assert server.process.poll() is None
    finally:
        server.stop(signal.SIGTERM)
    log = "".join(server.lines)
    assert "open sesame" not in log
    assert "hunter2" not in log


def test_two_servers_count_tokens_together_in_redis(tmp_path: Path) -> None:
    """Unavailable Redis: tests/api/test_rate_limits.py."""
    keys = key_file(tmp_path / "keys.toml", {"ann": "tokens_per_day = 1000"})
    body = {"prompt": "x", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    with RedisServer() as redis:
        options = ("--api-keys", str(keys), "--limits-url", redis.url)
        with tiny_server(*options) as one, tiny_server(*options) as two:
            first, _, refused = [
                server.post("/v1/completions", json=body | more, headers={"x-api-key": "ann"})
                for server, more in ((one, {}), (two, {}), (one, {"max_tokens": 1000}))
            ]
    used = 2 * first.json()["usage"]["total_tokens"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert f"Limit 1000, Used {used}," in refused.json()["error"]["message"]
