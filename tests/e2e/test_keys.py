"""Keys of a real server: a file that changes while it serves, TLS, and a log without secrets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import openai
import pytest
from websockets.asyncio.client import connect

from tests.e2e.serving import TINY, async_sdk, sdk, tiny_server
from tests.e2e.test_process import start_failure
from tests.hub_stand_in import Repo
from tests.hub_stand_in import running as hub_running
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S
from tests.warm import run

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def make_key(name: str, *more: str) -> tuple[str, str]:
    """A key as the command prints it, and its lines for the file."""
    printed = run("key", name)
    assert printed.returncode == 0
    return printed.stderr.split()[-1], "\n".join((printed.stdout.strip(), *more, ""))


def say(client: openai.OpenAI) -> openai.types.Completion:
    return client.completions.create(model="tiny", prompt="a", max_tokens=2)


def test_keys_change_while_the_server_serves_and_nothing_secret_is_logged(tmp_path: Path) -> None:
    ann, ann_lines = make_key("ann", "requests_per_minute = 1000")
    bob, bob_lines = make_key("bob", "admin = true")
    path = tmp_path / "keys.toml"
    path.write_text(ann_lines)
    with tiny_server("--api-keys", str(path), "--log-level", "debug") as server:
        with sdk(server, ann) as client:
            raw = client.completions.with_raw_response.create(model="tiny", prompt="a", max_tokens=2)
            assert raw.headers["x-ratelimit-remaining-requests"] == "999"
            with pytest.raises(openai.PermissionDeniedError):
                client.delete("/cache", cast_to=object)
        with sdk(server, bob) as client, pytest.raises(openai.AuthenticationError):
            say(client)
        assert httpx.get(server.url + "/health").status_code == 200

        path.write_text(bob_lines)
        os.kill(server.process.pid, signal.SIGHUP)
        server.wait_for("(1 API keys read)")
        with sdk(server, bob) as client:
            assert say(client).choices
            client.delete("/cache", cast_to=object)
        with sdk(server, ann) as client, pytest.raises(openai.AuthenticationError):
            say(client)

        path.write_text(ann_lines + "[keys.broken")
        os.kill(server.process.pid, signal.SIGHUP)
        server.wait_for("(the keys stay as they were: .*keys.toml)")
        with sdk(server, bob) as client:
            assert say(client).choices
        httpx.get(server.url + "/v1/models", headers={"authorization": f"Basic {ann}"})
        httpx.get(server.url + "/v1/models", params={"key": ann})
    log = "".join(server.lines)
    assert "POST /v1/completions" in log
    assert ann not in log
    assert bob not in log


def test_sighup_while_the_model_is_downloaded_waits_until_it_is_there(tmp_path: Path) -> None:
    _, ann_lines = make_key("ann")
    path = tmp_path / "keys.toml"
    path.write_text(ann_lines)
    with hub_running({"acme/tiny": Repo({"tiny.gguf": tiny_model_path().read_bytes()})}) as hub:
        hub.stall_after = 1000
        own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env = {**own, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
        server = ServerProcess("--model", "hf:acme/tiny/tiny.gguf", "--api-keys", str(path), env=env)
        try:
            assert hub.stalled.wait(timeout=DEADLINE_S)
            os.kill(server.process.pid, signal.SIGHUP)
            hub.released.set()
            server.wait_for("(1 API keys read)")
            server.wait_for("(ready): ")
        finally:
            server.stop(signal.SIGTERM)


def test_sighup_without_a_file_changes_nothing() -> None:
    with tiny_server("--api-key", "hunter2") as server:
        os.kill(server.process.pid, signal.SIGHUP)
        with sdk(server, "hunter2") as client:
            assert say(client).choices
        assert server.process.poll() is None
    assert "hunter2" not in "".join(server.lines)


@pytest.mark.parametrize("content", ["[keys.a", "", '[keys.a]\nsha256 = "hunter2"'])
def test_a_server_does_not_start_with_a_broken_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    said = start_failure(*TINY, "--api-keys", str(path))
    assert "keys.toml" in said
    assert "hunter2" not in said


def test_a_key_needs_a_name() -> None:
    for arguments in ([], ["a", "b"], ["a b"]):
        done = run("key", *arguments)
        assert (done.returncode, done.stdout) == (2, "")


def certificate(folder: Path, *password: str) -> tuple[Path, Path]:
    """Of this machine's own name, valid for a day."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    protection = ["-passout", f"pass:{password[0]}"] if password else ["-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", *protection]
    command += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    return key, cert


def test_https(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path, "open sesame")
    options = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
    server = tiny_server(*options, "--ssl-keyfile-password", "open sesame")
    try:
        url = "https://127.0.0.1:" + server.wait_for(r"listening on https://127\.0\.0\.1:(\d+)")
        server.wait_for("(ready): ")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted) as http:
            assert http.get(url + "/ready").status_code == 200
            body = {"prompt": "a", "max_tokens": 3, "stream": True}
            assert "data: [DONE]" in http.post(url + "/v1/completions", json=body).text
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/ready")  # nobody vouches for it
    finally:
        server.stop(signal.SIGTERM)
    assert "open sesame" not in "".join(server.lines)


def test_a_certificate_without_its_key(tmp_path: Path) -> None:
    _, cert = certificate(tmp_path)
    assert "--ssl-certfile" in start_failure(*TINY, "--ssl-certfile", str(cert))


@pytest.mark.anyio
async def test_a_stream_goes_on_when_its_key_is_taken_away_and_an_open_socket_begins_nothing_more(
    tmp_path: Path,
) -> None:
    ann, ann_lines = make_key("ann")
    _, bob_lines = make_key("bob")
    path = tmp_path / "keys.toml"
    path.write_text(ann_lines)
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": False}
    with tiny_server("--api-keys", str(path)) as server:
        url = server.url.replace("http", "ws") + "/v1/chat/completions"
        async with (
            async_sdk(server, ann) as client,
            connect(url, additional_headers={"authorization": f"Bearer {ann}"}) as socket,
        ):
            await socket.send(json.dumps({**ask, "request_id": "a"}))
            assert "choices" in json.loads(await socket.recv())
            assert "done" in json.loads(await socket.recv())
            stream = await client.completions.create(
                model="tiny", prompt="a", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
            )
            await anext(stream)
            path.write_text(bob_lines)
            os.kill(server.process.pid, signal.SIGHUP)
            await asyncio.to_thread(server.wait_for, "(1 API keys read)")
            *_, last = [chunk async for chunk in stream]
            assert last.choices[0].finish_reason == "length"
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
            await socket.send(json.dumps({**ask, "request_id": "b"}))
            refused = json.loads(await socket.recv())
            assert (refused["request_id"], refused["status"]) == ("b", 401)
            assert refused["error"]["code"] == "invalid_api_key"
