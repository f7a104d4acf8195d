"""Bodies with the fields that well-known programs add, as their sources have them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
RESULT: Any = {"role": "tool", "tool_call_id": "c1", "content": "nothing"}
BODIES: dict[str, Any] = {
    "Vercel AI SDK": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "", "tool_calls": [{**CALL, "extra_content": {"google": {}}}]},
            RESULT,
        ],
        "tools": [{**TOOL, "function": {**TOOL["function"], "strict": False}}],
        "tool_choice": "auto",
        "verbosity": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "Continue": {
        "messages": [{**HI, "id": "m1"}, {"role": "assistant", "content": " ", "toolCalls": []}, HI],
        "stop": [f"stop {index}" for index in range(20)],
        "prediction": {"type": "content", "content": "x"},
        "frequency_penalty": 0,
        "stream": True,
    },
    "Open WebUI": {
        "messages": [{**HI, "files": [], "timestamp": 1, "models": ["fake"]}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 1,
        "logit_bias": {},
    },
    "n8n (LangChain.js)": {
        "messages": [HI],
        "temperature": 0.7,
        "top_p": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "n": 1,
        "stream": False,
        "logprobs": None,
        "store": True,
        "service_tier": "scale",
        "prompt_cache_key": "k",
    },
    "CodeCompanion": {
        "messages": [{"role": "system", "content": "x", "id": 1947269257, "opts": {"visible": False}}, HI],
        "stream": True,
    },
    "OpenCode": {
        "messages": [{**HI, "agent": "cli", "messageId": "m", "traceId": "t", "usage": {"input": 1}}],
        "prompt_cache_key": "session",
        "stream": True,
    },
    "a proxy of several services": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
            },
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "provider_specific_fields": {"refusal": None},
                "tool_calls": [{**CALL, "index": 0, "provider_specific_fields": {}}],
            },
            {**RESULT, "name": "look", "is_error": False},
        ],
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
        "user": "u",
        "metadata": {"a": "b"},
    },
    "a program that sends its defaults": {
        "messages": [HI],
        "tools": [],
        "functions": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "logit_bias": {},
        "stop": [],
        "modalities": ["text"],
        "repetition_penalty": 1.0,
        "use_beam_search": False,
        "skip_special_tokens": True,
        "min_tokens": 0,
        "response_format": {"type": "text"},
    },
}


@pytest.mark.parametrize("program", BODIES)
async def test_what_it_sends_is_answered(http: httpx.AsyncClient, program: str) -> None:
    answer = await http.post(
        "/v1/chat/completions", json={"model": "fake", "max_tokens": 4, **BODIES[program]}
    )
    assert answer.status_code == 200, answer.text
    assert "choices" in answer.text
