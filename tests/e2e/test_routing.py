"""Routers of one real server between the demo model and the small one that drafts for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.warm import run

pytestmark = [pytest.mark.native, pytest.mark.thorough]

ASSETS = Path(__file__).parents[2] / "model_assets"
TOML = f"""
ctx_size = 2048
cache_mb = 8
[models.large]
source = "{ASSETS / "demo.gguf"}"
[models.small]
source = "{ASSETS / "demo-draft.gguf"}"
chat_template = "TEMPLATE"
[models.content]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = -100 }} }}
[models.strict]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = 0 }} }}
[models.asks.router]
by = "classifier"
small = "small"
large = "large"
classifier = {{ model = "large" }}
[models.auto.router]
by = "rules"
small = "content"
large = "large"
rules = [{{ route = "large", schema = true }}, {{ route = "large", prompt_tokens_over = 60 }}]
"""
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("routing")
    (folder / "template").write_text(TEMPLATE)
    (folder / "c.toml").write_text(TOML.replace("TEMPLATE", str(folder / "template")))
    with ServerProcess("--config", str(folder / "c.toml")) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as sdk:
        yield sdk


def asked(
    client: openai.OpenAI, model: str, text: str = "Tell me a story.", **fields: object
) -> tuple[str, str, str]:
    """Who answered, why, and the answer."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0, **fields}
    raw = client.chat.completions.with_raw_response.create(model=model, **body)  # type: ignore[call-overload]
    content = raw.parse().choices[0].message.content or ""
    return raw.headers["x-routed-model"], raw.headers["x-routed-why"], content


def streamed(client: openai.OpenAI, model: str) -> tuple[str, str]:
    messages = [{"role": "user", "content": "Tell me a story."}]
    with client.chat.completions.with_streaming_response.create(  # type: ignore[call-overload]
        model=model, messages=messages, max_tokens=24, temperature=0, stream=True
    ) as raw:
        chunks = list(raw.parse())
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    return raw.headers["x-routed-model"], "".join(deltas)


def test_a_cascade_answers_as_the_model_does_that_it_names(client: openai.OpenAI) -> None:
    for router, model in (("content", "small"), ("strict", "large")):
        who, why, answer = asked(client, router)
        assert (who, why.startswith("small: mean_logprob=-")) == (model, True)
        plain = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=24,
            temperature=0,
        )
        assert answer == plain.choices[0].message.content
        assert streamed(client, router) == (model, answer)


def test_json_that_is_cut_is_the_large_ones(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 90}}, "required": ["a"]}
    who, why, _ = asked(
        client,
        "content",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert (who, why) == ("large", "small: the answer was cut")


def test_rules_lead_to_a_model_or_to_a_cascade(client: openai.OpenAI) -> None:
    assert asked(client, "auto")[0] == "small"
    assert asked(client, "auto", "word " * 80)[:2] == ("large", "large: rule 2")
    assert asked(client, "auto", response_format={"type": "json_object"})[:2] == ("large", "large: rule 1")


def test_a_classifier_can_write_nothing_but_a_route(server: ServerProcess, client: openai.OpenAI) -> None:
    who, why, _ = asked(client, "asks")
    assert (who in ("small", "large"), why) == (True, f"{who}: large says so")
    metrics = httpx.get(server.url + "/metrics").text
    assert f'ocs_routed_requests_total{{model="{who}",router="asks",why="classified"}} 1.0' in metrics


def test_a_router_that_leads_nowhere_is_one_line_at_start(tmp_path: Path) -> None:
    router = 'router = { a = "one", b = "two", by = "shares", shares = { weights = { a = 1 } } }'
    (tmp_path / "c.toml").write_text(f"[models.auto]\n{router}")
    options = ("--model", f"one={tiny_model_path()}", "--config", str(tmp_path / "c.toml"))
    done = run("serve", "--port", "0", "--jobs-db", "none", *options)
    assert done.returncode == 2
    said = "openai-cpu-server: [models.auto] router: b = 'two': there is no such model; there is one\n"
    assert done.stderr.endswith(said)
