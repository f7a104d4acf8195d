"""Ignored and rejected fields, from the tables that decide it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from manual.table import table
from openai_cpu_server.api.chat.schema import Message
from openai_cpu_server.api.generation.schema import GenerationBody, StreamOptions
from openai_cpu_server.api.llama_server.schema import LlamaServerBody
from openai_cpu_server.api.ollama.schema import OllamaBody, OllamaGenerateBody, OllamaOptions
from openai_cpu_server.api.pooling.schema import EmbeddingBody, OllamaEmbedBody, RerankBody
from openai_cpu_server.api.transcriptions.schema import RecordingBody
from openai_cpu_server.http.parse import Body

_WHERE: Mapping[str, type[Body]] = {
    "generation": GenerationBody,
    "`stream_options`": StreamOptions,
    "a message": Message,
    "/v1/audio": RecordingBody,
    "/v1/embeddings": EmbeddingBody,
    "/v1/rerank": RerankBody,
    "/api/chat": OllamaBody,
    "/api/generate": OllamaGenerateBody,
    "`options` of these two": OllamaOptions,
    "/api/embed": OllamaEmbedBody,
    "/completion": LlamaServerBody,
}


def ignored_table() -> str:
    rows = (
        (f"`{name}`", where, _values(param.accepted) or "-", f"{_sentence(param.why)}")
        for where, body in _WHERE.items()
        for name, param in body.ignored.items()
    )
    heads = ("Field", "Of", "Not named for", "Why it changes nothing")
    return "\n## Fields that are ignored\n\n" + table(heads, rows)


def refused_table() -> str:
    return "\n## Fields that are refused\n\n" + table(
        ("Field", "Of", "Only accepted value", "Why"), _refused()
    )


def _refused() -> Iterator[tuple[str, ...]]:
    for where, body in _WHERE.items():
        for name, param in body.unsupported.items():
            yield f"`{name}`", where, _values(param.accepted) or "null", _sentence(param.why)


def _values(values: tuple[object, ...]) -> str:
    return ", ".join(dict.fromkeys(f"`{json.dumps(value)}`" for value in values))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
