"""One server whose limits are all low: each limit answers as it should, and every route asks for its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.access_table import ADMIN, INFERENCE, METRICS, NEEDED, OPEN, with_an_end
from tests.e2e.test_limits import connect, eventually, num_live
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]

PAGE = "https://page.example"
KEYS = {
    "all": "admin = true",
    "user": "",
    "scraper": 'scopes = ["metrics"]',
    "operator": 'scopes = ["admin"]',
    "few": "requests_per_minute = 2",
    "one": "concurrent = 1",
}
OPTIONS = (
    *("--ctx-size", "16384", "--max-seqs", "1", "--max-queue", "2", "--request-timeout", "4"),
    *("--max-prompt-tokens", "64", "--max-choices", "2", "--max-body-mb", "1", "--speculation", "off"),
    *("--cors-origin", PAGE),
)
LONG = {"prompt": "a", "max_tokens": 3900, "ignore_eos": True, "stream": True, "logprobs": 5}
ASK = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key-user\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(json.dumps(LONG)), json.dumps(LONG).encode())
)
SHORT = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    digests = {name: hashlib.sha256(f"key-{name}".encode()).hexdigest() for name in KEYS}
    path.write_text("".join(f'[keys.{name}]\nsha256 = "{digests[name]}"\n{KEYS[name]}\n' for name in KEYS))
    with ServerProcess("--model", str(tiny_model_path()), *OPTIONS, "--api-keys", str(path)) as process:
        yield process


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{key}"}


def http(server: ServerProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers=bearer(key), timeout=60)


@pytest.fixture(scope="module")
def nobody(tight: ServerProcess) -> Iterator[httpx.Client]:
    """A client without a key."""
    with httpx.Client(base_url=tight.url, timeout=60) as client:
        yield client


@pytest.fixture
def user(tight: ServerProcess) -> Iterator[httpx.Client]:
    with http(tight, "user") as client:
        yield client
    eventually(lambda: num_live(tight) == 0)


def num_running(server: ServerProcess) -> int:
    return sum(size["running"] for size in server.status()["queue"].values())


def complete(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/v1/completions", json={**SHORT, **fields})


def error_of(answer: httpx.Response) -> dict[str, object]:
    return dict(answer.json()["error"])


ANTHROPICS = {"invalid_api_key": "authentication_error", "missing_scope": "permission_error"}


def is_error(answer: httpx.Response, code: str) -> bool:
    """Anthropic's routes tell it in Anthropic's words."""
    error = error_of(answer)
    return error["code"] == code if "code" in error else error["type"] == ANTHROPICS[code]


def test_a_full_queue(tight: ServerProcess, user: httpx.Client) -> None:
    with ExitStack() as held:
        for number in range(1, 4):
            held.enter_context(connect(tight)).sendall(ASK)
            eventually(lambda number=number: num_live(tight) == number)  # type: ignore[misc]
        refused = complete(user)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1000
        assert complete(user, priority="batch", timeout=0.2).status_code == 408  # the other queue has room


@pytest.mark.parametrize(
    ("fields", "said"), [({"timeout": 0.2}, "0.2 seconds"), ({"timeout": 600, "n": 2}, "4 seconds")]
)
def test_a_call_ends_when_its_time_is_over(
    tight: ServerProcess, user: httpx.Client, fields: dict[str, object], said: str
) -> None:
    """The field's or the server's, whichever is shorter."""
    with user.stream("POST", "/v1/completions", json=LONG):
        eventually(lambda: num_running(tight) == 1)
        late = complete(user, **{**LONG, **fields, "stream": False})
    assert (late.status_code, error_of(late)["code"]) == (408, "request_timeout")
    assert said in str(error_of(late)["message"])
    assert late.headers["x-should-retry"] == "false"


def test_a_long_prompt(user: httpx.Client) -> None:
    refused = complete(user, prompt=[5] * 65)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "context_length_exceeded")
    assert complete(user, prompt=[5] * 64).status_code == 200


def test_many_choices(user: httpx.Client) -> None:
    refused = complete(user, n=3)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "n")
    assert len(complete(user, n=2).json()["choices"]) == 2


def test_requests_per_minute(tight: ServerProcess) -> None:
    with http(tight, "few") as few:
        left = [complete(few).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
        refused = complete(few)
    assert left == ["1", "0"]
    assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_calls_at_once(tight: ServerProcess) -> None:
    with http(tight, "one") as one:
        with one.stream("POST", "/v1/completions", json=LONG):
            refused = complete(one)
            assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        eventually(lambda: complete(one).status_code == 200)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_large_body(tight: ServerProcess, path: str) -> None:
    """By its length, and in chunks that do not tell it: the last one goes too far."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key-user\r\n".encode()
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for sent in (
        head + b"content-length: 1048577\r\n\r\n",
        head + b"transfer-encoding: chunked\r\n\r\n" + 16 * chunk + b"1\r\n \r\n",
    ):
        with connect(tight) as sock:
            sock.sendall(sent)
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))  # type: ignore[misc]
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"request_too_large" in answer


def test_pages_of_other_origins(tight: ServerProcess, user: httpx.Client) -> None:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    preflight = httpx.options(tight.url + "/v1/completions", headers={"origin": PAGE, **asked})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "POST" in preflight.headers["access-control-allow-methods"]
    other = httpx.options(tight.url + "/v1/completions", headers={"origin": "https://other.example", **asked})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers

    served = user.post("/v1/completions", json=SHORT, headers={"origin": PAGE})
    assert (served.status_code, served.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-request-id" in served.headers["access-control-expose-headers"]
    refused = user.post("/v1/completions", json=SHORT, headers={"origin": "https://other.example"})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in refused.headers


# -- Who may do what --------------------------------------------------------------------------------------

HOLDERS = {INFERENCE: {"all", "user", "few", "one"}, METRICS: {"all", "scraper"}, ADMIN: {"all", "operator"}}
"""Names of keys that have this scope."""


def test_the_table_has_every_route(tight: ServerProcess) -> None:
    paths = httpx.get(tight.url + "/openapi.json").json()["paths"]
    methods = ("get", "post", "put", "patch", "delete")
    found = {f"{m.upper()} {path}" for path, item in paths.items() for m in item if m in methods}
    assert found == set(NEEDED)


@pytest.mark.parametrize("route", NEEDED)
def test_each_route_asks_for_its_key(nobody: httpx.Client, route: str) -> None:
    method, path = route.replace("{id}", "none").split(" ")
    needed = NEEDED[route]
    for key in (None, "wrong", *KEYS):
        answer = nobody.request(method, with_an_end(path), headers={} if key is None else bearer(key))
        if needed is OPEN or key in HOLDERS[needed]:
            assert answer.status_code not in (401, 403, 500), (route, key)
        elif key in (None, "wrong"):
            assert (answer.status_code, is_error(answer, "invalid_api_key")) == (401, True), (route, key)
            assert answer.headers["www-authenticate"] == "Bearer"
        else:
            assert (answer.status_code, is_error(answer, "missing_scope")) == (403, True), (route, key)


@pytest.mark.parametrize(
    ("key", "status"), [(None, 401), ("wrong", 401), ("scraper", 403), ("user", 101), ("all", 101)]
)
def test_a_socket_asks_for_its_key(tight: ServerProcess, key: str | None, status: int) -> None:
    said = "" if key is None else f"authorization: Bearer key-{key}\r\n"
    handshake = (
        f"GET /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{said}"
        "upgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with connect(tight) as sock:
        sock.sendall(handshake.encode())
        assert sock.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_nothing_of_it_has_cost_the_engine(tight: ServerProcess) -> None:
    assert tight.status()["restarts"] == 0
