"""Fields that the server does not implement. A field that would not change the answer is ignored and named
in the response; others are rejected, except with values that ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Hint(msgspec.Struct, frozen=True):
    why: str
    heeded: tuple[object, ...] = ()
    """Values that are honoured or ask for nothing, and are not reported."""


class Refusal(msgspec.Struct, frozen=True):
    """Field whose values would change the answer."""

    why: str
    accepted: tuple[object, ...] = ()


Hints = Mapping[str, Hint]
Refusals = Mapping[str, Refusal]

TIERS = ("auto", "default", "flex", "priority")
_CACHE = "prompts that begin alike are found without hints"
TIER_HINT: Hints = {"service_tier": Hint("other names are those of other services' prices", TIERS)}

_MEMORY = Hint("the server keeps prompts by itself, and has no slots that a request could name")
_OF_OFF = Hint("it belongs to a sampler that is not built")
_TIME = Hint("an answer ends by its tokens; 'timeout' limits the time of a call")
_NO_SAMPLER = "this sampler is not built"
_TRIGGERS = "a grammar holds from the first token on; tools have their own ('/v1/chat/completions')"
LLAMA_SERVER_HINTS: Hints = {
    "cache_prompt": Hint("prompts are always cached", (True,)),
    "id_slot": Hint("a request has no slot of its own", (-1,)),
    **dict.fromkeys(("n_keep", "n_discard", "n_cache_reuse"), _MEMORY),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "adaptive_decay"), _OF_OFF),
    **dict.fromkeys(("t_max_predict_ms", "t_max_prompt_ms"), _TIME),
    "n_indent": Hint("an answer is not cut by its indentation", (0,)),
    "verbose": Hint("there is nothing more to tell", (False,)),
    "backend_sampling": Hint("sampling is the same wherever it is done", (False,)),
    "sse_ping_interval": Hint("'--keep-alive-s' of the server decides it"),
    "typ_p": Hint("llama-server's own page sends it, and llama-server reads 'typical_p' alone", (1, 1.0)),
    **dict.fromkeys(
        ("chat_parser", "generation_prompt", "preserved_tokens"),
        Hint("the model's template decides how its output is read"),
    ),
}
"""Fields that clients of llama-server, its own page included, send on all routes."""
LLAMA_SERVER_REFUSALS: Refusals = {
    "mirostat": Refusal(_NO_SAMPLER, (0,)),
    "dynatemp_range": Refusal(_NO_SAMPLER, (0, 0.0)),
    "adaptive_target": Refusal(_NO_SAMPLER, (-1, -1.0)),
    "min_keep": Refusal("samplers keep one token at least", (0, 1)),
    "post_sampling_probs": Refusal("probabilities are those before any sampler", (False,)),
    "grammar_lazy": Refusal(_TRIGGERS, (False,)),
    "grammar_triggers": Refusal(_TRIGGERS, ([],)),
}

GENERATION_HINTS: Hints = {
    **TIER_HINT,
    **LLAMA_SERVER_HINTS,
    "store": Hint("answers are not kept for later", (False,)),
    "verbosity": Hint("the models here were not trained to know it; say it in the prompt"),
    "prediction": Hint("it makes an answer faster at OpenAI, not another one"),
    "prompt_cache_key": Hint(_CACHE),
    "prompt_cache_options": Hint(_CACHE),
    "prompt_cache_retention": Hint("cached prompts stay as long as there is room"),
    "reasoning_control": Hint("thoughts can always be ended; the field is llama-server's", (True,)),
    "chat_format": Hint("the model's template decides it; the field is llama-server's"),
    "request_id": Hint("its name here is the header 'X-Request-Id'; the field is vLLM's"),
    "spaces_between_special_tokens": Hint("special tokens are never shown; the field is vLLM's", (True,)),
    "vllm_xargs": Hint("it is for extensions of vLLM"),
    "kv_transfer_params": Hint("prompts come from no other server; the field is vLLM's"),
    "guided_decoding_backend": Hint(
        "there is one way here, which enforces the same forms; the field is vLLM's"
    ),
}
GENERATION_REFUSALS: Refusals = {
    **LLAMA_SERVER_REFUSALS,
    "modalities": Refusal("the models here answer with text only", (["text"],)),
    "audio": Refusal("the models here cannot speak"),
    "web_search_options": Refusal("the server does not search the web"),
    "moderation": Refusal("the server does not judge contents"),
    "guided_whitespace_pattern": Refusal("'--json-whitespace' of the server decides it"),
    "length_penalty": Refusal("it is for beam search, which is not done", (1, 1.0)),
    "use_beam_search": Refusal("beam search is not done", (False,)),
    "n_probs": Refusal("'logprobs' tells them", (0,)),
    "reasoning_format": Refusal(
        "thoughts are told apart from the answer, or '--reasoning-format' of the server is none",
        ("auto", "deepseek", "deepseek-legacy"),
    ),
    "parse_tool_calls": Refusal("calls of tools are always told apart from the answer", (True,)),
    "return_tokens": Refusal("'/completion' tells them", (False,)),
    "response_fields": Refusal("'/completion' takes it", ([],)),
    "n_cmpl": Refusal("its name here is 'n'", (1,)),
    "allowed_token_ids": Refusal("a 'grammar', 'choice' or 'logit_bias' says it", ([],)),
    "return_token_ids": Refusal("'/completion' tells them ('return_tokens')", (False,)),
    "return_tokens_as_token_ids": Refusal("tokens are told as texts and bytes", (False,)),
    "detokenize": Refusal("answers are texts", (True,)),
    "logits_processors": Refusal("a request brings no code", ([],)),
    "mm_processor_kwargs": Refusal("the model's own file says how pictures are read", ({},)),
    "documents": Refusal("say them in a message", ([],)),
    "prompt_logprobs": Refusal("'echo' with 'logprobs' of /v1/completions tells them"),
    "skip_special_tokens": Refusal("special tokens are never shown", (True,)),
    "include_stop_str_in_output": Refusal("stop strings are never shown", (False,)),
}

STREAM_HINTS: Hints = {
    "include_obfuscation": Hint("chunks carry no random padding", (False,)),
}
STREAM_REFUSALS: Refusals = {
    "continuous_usage_stats": Refusal("usage comes once, in the last chunk", (False,)),
}

RESPONSES_HINTS: Hints = {
    "service_tier": Hint("other names are those of other services' prices", (*TIERS, "fast")),
    "prompt_cache_options": Hint(_CACHE),
    "prompt_cache_retention": Hint("cached prompts stay as long as there is room"),
    "client_metadata": Hint("it is for OpenAI's statistics"),
    "personality": Hint("the models here have none to choose from"),
    "background_options": Hint("what runs in the background runs as soon as there is room"),
    "access_programs": Hint("it is about models of OpenAI's"),
}
REASONING_REFUSALS: Refusals = {
    "context": Refusal("the chat template decides which earlier thoughts the model sees", ("auto",)),
    "mode": Refusal("a model thinks in one way", ("standard",)),
}
RESPONSES_REFUSALS: Refusals = {
    "prompt": Refusal("there are no stored templates of prompts"),
    "moderation": Refusal("the server does not judge contents"),
}

_SPEAKERS = "speakers are not told apart"
TRANSCRIPTION_REFUSALS: Refusals = {
    "known_speaker_names": Refusal(_SPEAKERS, ([],)),
    "known_speaker_references": Refusal(_SPEAKERS, ([],)),
}

EMBEDDING_HINTS: Hints = {
    **TIER_HINT,
    "input_type": Hint("no words are put before an input; where a model wants 'query: ', write it"),
}
EMBEDDING_REFUSALS: Refusals = {
    "normalize": Refusal("vectors always have length 1", (True,)),
    "task": Refusal("a model has one way to embed"),
    "late_chunking": Refusal("each input is embedded by itself", (False,)),
}

RERANK_HINTS: Hints = {
    **TIER_HINT,
    "max_chunks_per_doc": Hint("documents are not cut into chunks"),
}
RERANK_REFUSALS: Refusals = {
    "max_tokens_per_doc": Refusal("'truncate' cuts documents to what the model takes"),
    "rank_fields": Refusal("only 'text' of a document is read", (["text"],)),
}

MESSAGE_REFUSALS: Refusals = {
    "images": Refusal("the models here have no vision", ([],)),
    "videos": Refusal("the models here have no vision", ([],)),
    "audio": Refusal("the models here cannot hear"),
}


def is_one_of(value: object, known: Sequence[object]) -> bool:
    """Compare as JSON does: `0` is not `false`."""
    return any(type(one) is type(value) and one == value for one in known)
