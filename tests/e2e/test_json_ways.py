"""Thirteen ways to request JSON with pydantic's own schema, which says nothing about other properties: each
writes the declared ones alone. The real server with SmolLM2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.e2e.serving import sdk
from tests.lazy import Lazy
from tests.server_process import ServerProcess
from tests.waiting import wait_until

langchain_openai = Lazy("langchain_openai")
llms, prompts = Lazy("llama_index.llms.openai_like"), Lazy("llama_index.core.prompts")

pytestmark = [pytest.mark.native, pytest.mark.slow]

NUM_ROWS = 20
MODEL, KEY = "smollm2", "none"
LIMITS: Any = {"temperature": 0.8, "max_tokens": 300}
NAMES = ("Maria Lopez", "John Smith", "Wei Chen", "Aisha Khan", "Lars Olsen")
CITIES = ("Madrid", "Boston", "Shanghai", "Lahore")


class Person(BaseModel):
    name: str
    age: int
    city: str


class Checked(Person):
    model_config = ConfigDict(extra="forbid")


SCHEMA = Person.model_json_schema()
assert "additionalProperties" not in SCHEMA
NAMED = {"name": "Person", "schema": SCHEMA}
FUNCTION = {"name": "save", "description": "Save a person."}


def turns(row: int) -> Any:
    name, city = NAMES[row % len(NAMES)], CITIES[row % len(CITIES)]
    text = f"Extract the person: {name} is {20 + row} years old and lives in {city}."
    return [{"role": "user", "content": text}]


def prompt(row: int) -> str:
    return f"{turns(row)[0]['content']}\nJSON:"


def chat(server: ServerProcess, row: int, **more: Any) -> Any:
    with sdk(server) as client:
        made = client.chat.completions.create(model=MODEL, messages=turns(row), seed=row, **LIMITS, **more)
    return made.choices[0].message


def chat_text(server: ServerProcess, row: int, **more: Any) -> str:
    return chat(server, row, **more).content


def json_schema(server: ServerProcess, row: int) -> str:
    return chat_text(server, row, response_format={"type": "json_schema", "json_schema": NAMED})


def json_object(server: ServerProcess, row: int) -> str:
    return chat_text(server, row, response_format={"type": "json_object", "schema": SCHEMA})


def guided_json(server: ServerProcess, row: int) -> str:
    return chat_text(server, row, extra_body={"guided_json": SCHEMA})


def strict_tool(server: ServerProcess, row: int) -> str:
    tool = {"type": "function", "function": {**FUNCTION, "parameters": SCHEMA, "strict": True}}
    must = {"tool_choice": "required", "parallel_tool_calls": False}
    (call,) = chat(server, row, tools=[tool], **must).tool_calls
    return str(call.function.arguments)


def parse_of_the_sdk(server: ServerProcess, row: int) -> str:
    with sdk(server) as client:
        ask = client.chat.completions.parse
        made = ask(model=MODEL, messages=turns(row), response_format=Person, seed=row, **LIMITS)
    return str(made.choices[0].message.content)


def responses(server: ServerProcess, row: int) -> str:
    form: Any = {"format": {"type": "json_schema", **NAMED}}
    with sdk(server) as client:
        made = client.responses.create(
            model=MODEL, input=turns(row), text=form, temperature=0.8, max_output_tokens=300
        )
    return str(made.output_text)


def anthropic_tool(server: ServerProcess, row: int) -> str:
    tool: Any = {**FUNCTION, "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        made = client.messages.create(
            model=MODEL,
            messages=turns(row),
            tools=[tool],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            max_tokens=300,
            extra_body={"temperature": 0.8},
        )
    (call,) = [block for block in made.content if block.type == "tool_use"]
    return json.dumps(call.input)


def ollama_format(server: ServerProcess, row: int) -> str:
    options = {"temperature": 0.8, "num_predict": 300, "seed": row}
    with closing(ollama.Client(host=server.url)) as client:
        made = client.chat(MODEL, turns(row), format=SCHEMA, options=options)
    return str(made.message.content)


def llama_server(server: ServerProcess, row: int) -> str:
    body = {"prompt": prompt(row), "json_schema": SCHEMA, "temperature": 0.8, "n_predict": 300, "seed": row}
    return str(server.post("/completion", body).json()["content"])


def completions(server: ServerProcess, row: int) -> str:
    form = {"response_format": {"type": "json_schema", "json_schema": NAMED}}
    with sdk(server) as client:
        made = client.completions.create(model=MODEL, prompt=prompt(row), seed=row, extra_body=form, **LIMITS)
    return made.choices[0].text


def langchain(server: ServerProcess, row: int) -> str:
    model = langchain_openai.ChatOpenAI(base_url=f"{server.url}/v1", api_key=KEY, model=MODEL, **LIMITS)
    made = model.with_structured_output(SCHEMA | {"description": "A person."}, method="json_schema")
    return json.dumps(made.invoke(turns(row)[0]["content"]))


def llama_index(server: ServerProcess, row: int) -> str:
    model = llms.OpenAILike(
        api_base=f"{server.url}/v1",
        api_key=KEY,
        model=MODEL,
        is_chat_model=True,
        is_function_calling_model=True,
        **LIMITS,
    )
    template = prompts.PromptTemplate("{text}")
    made = model.structured_predict(Person, template, text=turns(row)[0]["content"])
    return str(made.model_dump_json())


ONE_BY_ONE: Mapping[str, Callable[[ServerProcess, int], str]] = {
    each.__name__: each
    for each in (
        json_schema, json_object, guided_json, strict_tool, parse_of_the_sdk, responses, anthropic_tool,
        ollama_format, llama_server, completions, langchain, llama_index,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


def spoilt(texts: list[str]) -> list[str]:
    """Those that are cut, or have invented keys."""
    return [text for text in texts if not _is_clean(text)]


def _is_clean(text: str) -> bool:
    try:
        Checked.model_validate_json(text)
    except ValueError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the frameworks
@pytest.mark.parametrize("way", ONE_BY_ONE)
def test_each_way_writes_the_declared_properties_alone(server: ServerProcess, way: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda row: ONE_BY_ONE[way](server, row), range(NUM_ROWS)))
    assert (len(texts), spoilt(texts)) == (NUM_ROWS, [])


def test_a_batch_writes_the_declared_properties_alone(server: ServerProcess) -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": NAMED}}
    rows = (
        {"model": MODEL, "messages": turns(row), "seed": row, **LIMITS, **form} for row in range(NUM_ROWS)
    )
    lines = [
        {"custom_id": str(row), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for row, body in enumerate(rows)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    with sdk(server) as client:
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        for num_ended in range(1, NUM_ROWS + 1):
            wait_until(partial(_has_ended, client, batch.id, num_ended))
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
        output = str(client.batches.retrieve(batch.id).output_file_id)
        answers = client.files.content(output).text.splitlines()
    bodies = [json.loads(line)["response"]["body"] for line in answers]
    texts = [body["choices"][0]["message"]["content"] for body in bodies]
    assert (len(texts), spoilt(texts)) == (NUM_ROWS, [])


def _has_ended(client: openai.OpenAI, batch_id: str, num_rows: int) -> bool:
    counts = client.batches.retrieve(batch_id).request_counts
    return counts is not None and counts.completed + counts.failed >= num_rows
