"""Exact bytes of text completions, whole and in chunks."""

from __future__ import annotations

import json
from typing import Any

from openai_cpu_server.api.asking.call import Call, Prompt
from openai_cpu_server.api.completions.render import CompletionRenderer
from openai_cpu_server.contract.messages import TokenEvent
from tests.api.calls import MINUS_INFINITY, TIMINGS_JSON, call, end, scored, streamed, text, tokens_of, whole

RENDERER = CompletionRenderer()
HEAD = '"id":"c","object":"text_completion","created":7,"model":"m","system_fingerprint":"fp"'
ECHOED = Prompt((0, *tokens_of("hi")), "hi")


def chunk(choice: str) -> str:
    return f'data: {{{HEAD},"choices":[{choice}]}}\n\n'


def choices(of: Call, *steps: TokenEvent) -> list[dict[str, Any]]:
    return list(json.loads(whole(RENDERER, of, *steps))["choices"])


def prompt_scores(*events: float) -> TokenEvent:
    scores = tuple(scored(letter, p) for letter, p in zip("hi", events, strict=True))
    return TokenEvent(id="c-0", prompt_logprobs=scores)


def test_a_stream_is_texts_and_a_reason() -> None:
    assert streamed(RENDERER, call(), text(0, "a"), end(0)) == [
        chunk('{"index":0,"text":"a","logprobs":null,"finish_reason":null}'),
        chunk('{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}'),
    ]


def test_an_echoed_prompt_comes_first() -> None:
    opened, more = streamed(RENDERER, call(ECHOED), text(0, "a"), text(0, "b"))
    assert opened == chunk('{"index":0,"text":"hi","logprobs":null,"finish_reason":null}') + chunk(
        '{"index":0,"text":"a","logprobs":null,"finish_reason":null}'
    )
    assert "hi" not in more


def test_an_echoed_prompt_is_streamed_with_its_scores() -> None:
    scores, first = streamed(
        RENDERER, call(ECHOED, logprobs=0), prompt_scores(-1.0, -2.0), text(0, "a", scored("a", -0.5))
    )
    assert scores == chunk(
        '{"index":0,"text":"hi","logprobs":{"tokens":["<s>","h","i"],"token_logprobs":[null,-1.0,-2.0],'
        '"top_logprobs":[null,{"h":-1.0},{"i":-2.0}],"text_offset":[0,0,1]},"finish_reason":null}'
    )
    assert first == chunk(
        '{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.5],'
        '"top_logprobs":[{"a":-0.5}],"text_offset":[2]},"finish_reason":null}'
    )


def test_a_whole_response() -> None:
    assert whole(RENDERER, call(), text(0, "ok"), end(0)).decode() == (
        '{"id":"c","object":"text_completion","created":7,"model":"m","choices":'
        '[{"text":"ok","index":0,"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
        '"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0},'
        '"completion_tokens_details":{"reasoning_tokens":0}},"timings":'
        + TIMINGS_JSON
        + ',"system_fingerprint":"fp"}'
    )


def test_scoring_a_prompt_alone() -> None:
    (choice,) = choices(call(ECHOED, logprobs=0), prompt_scores(-1.0, MINUS_INFINITY), end(0))
    assert choice["text"] == "hi"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "h", "i"],
        "token_logprobs": [None, -1.0, -9999.0],
        "top_logprobs": [None, {"h": -1.0}, {"i": -9999.0}],
        "text_offset": [0, 0, 1],
    }


def test_offsets_go_on_after_the_prompt_and_count_characters() -> None:
    events = [scored(chr(byte), -1.0) for byte in "é!".encode()]
    (choice,) = choices(call(ECHOED, logprobs=0), prompt_scores(-1, -1), text(0, "é!", *events), end(0))
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 2, 3]
    assert logprobs["tokens"][3:] == ["bytes:\\xc3", "bytes:\\xa9", "!"]


def test_offsets_allow_for_what_the_tokenizer_put_first() -> None:
    prompt = Prompt((0, *tokens_of(" hi")), "hi")  # as SPM does with its leading space
    scores = tuple(scored(letter, -1.0) for letter in " hi")
    event = TokenEvent(id="c-0", prompt_logprobs=scores)
    (choice,) = choices(call(prompt, logprobs=0), event, end(0))
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1]


def test_alternatives_hold_the_sampled_token_too() -> None:
    entry = scored("a", -3.0, ("b", -0.1), ("c", -0.2))
    (choice,) = choices(call(logprobs=2), text(0, "a", entry), end(0))
    assert choice["logprobs"]["top_logprobs"] == [{"b": -0.1, "c": -0.2, "a": -3.0}]


def test_choices_count_through_all_prompts() -> None:
    asked = call(Prompt(tokens_of("a"), "a"), Prompt(tokens_of("bc"), "bc"), n=2)
    shown = choices(asked, *(text(i, str(i)) for i in range(4)), *(end(i) for i in range(4)))
    assert [(c["index"], c["text"]) for c in shown] == [(0, "a0"), (1, "a1"), (2, "bc2"), (3, "bc3")]
    assert '"index":3,"text":"bc"' in "".join(streamed(RENDERER, asked, text(3, "x")))


def test_prompt_tokens_and_cached_ones_are_summed_over_prompts() -> None:
    """Of a prompt's choices the first to run found the least; the others shared what it computed."""
    asked = call(Prompt(tokens_of("abcd")), Prompt(tokens_of("efghijk")), n=2)
    found = [3, 2, 0, 6]
    body = json.loads(whole(RENDERER, asked, *(end(i, cached_tokens=found[i]) for i in range(4))))
    assert body["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 8,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 2 + 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_the_best_by_mean_logprob_are_shown_and_all_are_counted() -> None:
    asked = call(n=2, best_of=4)
    events = [
        text(0, "aa", scored("a", -1.0), scored("a", -1.0)),
        text(1, "b", scored("b", -1.5)),
        text(2, "c", scored("c", -0.5)),
    ]
    body = json.loads(whole(RENDERER, asked, *events, *(end(i) for i in range(4))))
    assert [(c["index"], c["text"], c["logprobs"]) for c in body["choices"]] == [
        (0, "c", None),
        (1, "aa", None),
    ]
    assert body["usage"]["completion_tokens"] == 8
