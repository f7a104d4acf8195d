"""One server whose limits are all low: each limit answers as it should, and every route asks for its key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.access_table import ADMIN, INFERENCE, METRICS, NEEDED, OPEN, with_an_end
from tests.e2e.serving import key_file, num_live, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S, wait_until
from tests.wire import connect

pytestmark = [pytest.mark.native, pytest.mark.thorough]

PAGE = "https://page.example"
KEYS = {
    "all": "admin = true",
    "user": "",
    "scraper": 'scopes = ["metrics"]',
    "operator": 'scopes = ["admin"]',
    "few": "requests_per_minute = 2",
}
OPTIONS = (
    *("--ctx-size", "16384", "--max-seqs", "1", "--max-queue", "2", "--request-timeout", "4"),
    *("--max-prompt-tokens", "64", "--max-choices", "2", "--max-body-mb", "1", "--speculation", "off"),
    *("--cors-origin", PAGE),
)
LONG = {"prompt": "a", "max_tokens": 3900, "ignore_eos": True, "stream": True, "logprobs": 5}
ASK = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer user\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(json.dumps(LONG)), json.dumps(LONG).encode())
)
SHORT = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = key_file(tmp_path_factory.mktemp("keys") / "keys.toml", KEYS)
    with tiny_server(*OPTIONS, "--api-keys", str(path)) as process:
        yield process


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def http(server: ServerProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers=bearer(key), timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def nobody(tight: ServerProcess) -> Iterator[httpx.Client]:
    """A client without a key."""
    with httpx.Client(base_url=tight.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def user(tight: ServerProcess) -> Iterator[httpx.Client]:
    with http(tight, "user") as client:
        yield client
    wait_until(lambda: num_live(tight) == 0)


def complete(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/v1/completions", json={**SHORT, **fields})


def error_of(answer: httpx.Response) -> dict[str, object]:
    return dict(answer.json()["error"])


def test_a_full_queue(tight: ServerProcess, user: httpx.Client) -> None:
    with ExitStack() as held:
        for number in range(1, 4):
            held.enter_context(connect(tight)).sendall(ASK)
            wait_until(lambda number=number: num_live(tight) == number)  # type: ignore[misc]
        refused = complete(user)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1000
        assert complete(user, priority="batch", timeout=0.2).status_code == 408  # the other queue has room


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"timeout": 0.2}, "0.2 seconds"),
        pytest.param({"timeout": 600, "n": 2}, "4 seconds", marks=pytest.mark.slow),
    ],
)
def test_a_call_ends_when_its_time_is_over(
    tight: ServerProcess, user: httpx.Client, fields: dict[str, object], said: str
) -> None:
    """The field's or the server's, whichever is shorter."""
    with user.stream("POST", "/v1/completions", json=LONG):
        wait_until(lambda: num_live(tight) == 1)
        late = complete(user, **{**LONG, **fields, "stream": False})
    assert (late.status_code, error_of(late)["code"]) == (408, "request_timeout")
    assert said in str(error_of(late)["message"])
    assert late.headers["x-should-retry"] == "false"


def test_long_prompts_and_many_choices(user: httpx.Client) -> None:
    refused = complete(user, prompt=[5] * 65)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "context_length_exceeded")
    assert complete(user, prompt=[5] * 64).status_code == 200
    refused = complete(user, n=3)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "n")
    assert len(complete(user, n=2).json()["choices"]) == 2


def test_requests_per_minute(tight: ServerProcess) -> None:
    with http(tight, "few") as few:
        left = [complete(few).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
        refused = complete(few)
    assert left == ["1", "0"]
    assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_large_body(tight: ServerProcess, path: str) -> None:
    """By its length, and in chunks that do not tell it: the last one goes too far."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer user\r\n".encode()
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


def test_pages_of_other_origins(nobody: httpx.Client) -> None:
    for origin, status, allowed in ((PAGE, 200, PAGE), ("https://other.example", 400, None)):
        headers = {"origin": origin, "access-control-request-method": "POST"}
        preflight = nobody.options("/v1/completions", headers=headers)
        assert preflight.status_code == status
        assert preflight.headers.get("access-control-allow-origin") == allowed
    served = nobody.post("/v1/completions", json=SHORT, headers={"origin": PAGE, **bearer("user")})
    assert (served.status_code, served.headers["access-control-allow-origin"]) == (200, PAGE)


# -- Who may do what --------------------------------------------------------------------------------------

HOLDERS = {INFERENCE: {"all", "user", "few"}, METRICS: {"all", "scraper"}, ADMIN: {"all", "operator"}}
"""Names of keys that have this scope."""


@pytest.mark.parametrize("route", NEEDED)
def test_each_route_asks_for_its_key(nobody: httpx.Client, route: str) -> None:
    """In which words it does: tests/api/test_access_matrix.py."""
    method, path = route.replace("{id}", "none").split(" ")
    for key in (None, "wrong", *KEYS):
        answer = nobody.request(method, with_an_end(path), headers={} if key is None else bearer(key))
        if NEEDED[route] is OPEN or key in HOLDERS[NEEDED[route]]:
            assert answer.status_code not in (401, 403, 500), (route, key)
        else:
            assert answer.status_code == (403 if key in KEYS else 401), (route, key)


def test_nothing_of_it_has_cost_the_engine(tight: ServerProcess) -> None:
    assert tight.status()["restarts"] == 0
