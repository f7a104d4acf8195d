"""Unimplemented fields. One that would not change the answer is ignored and named in the response; others are
rejected, except with values that request nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class IgnoredParam(msgspec.Struct, frozen=True):
    why: str
    accepted: tuple[object, ...] = ()
    """Values honoured or requesting nothing, which are not reported."""


class UnsupportedParam(IgnoredParam, frozen=True):
    """Field whose values would change the answer."""

    code: str = "unsupported_parameter"


IgnoredParams = Mapping[str, IgnoredParam]
UnsupportedParams = Mapping[str, UnsupportedParam]

_HISTORY = UnsupportedParam("this route keeps no conversations; send all messages")
HISTORY_UNSUPPORTED: UnsupportedParams = dict.fromkeys(
    ("previous_response_id", "previous_message_id", "conversation", "thread", "continue"), _HISTORY
)
"""Fields that continue a stored conversation, rejected also in lenient mode."""

TIERS = ("auto", "default", "flex", "priority")
_CACHE = "prompts that begin alike are found without hints"
TIER_IGNORED: IgnoredParams = {
    "service_tier": IgnoredParam("other names belong to price lists of other services", TIERS)
}

_MEMORY = IgnoredParam("the server keeps prompts by itself, and has no slots that a request could name")
_OF_OFF = IgnoredParam("it belongs to a sampler that is not implemented")
_TIME = IgnoredParam("an answer is limited by its tokens; 'timeout' limits the time of a call")
_NO_SAMPLER = "this sampler is not implemented"
_TRIGGERS = "a grammar holds from the first token on; tools have their own ('/v1/chat/completions')"
LLAMA_SERVER_IGNORED: IgnoredParams = {
    "cache_prompt": IgnoredParam("prompts are always cached", (True,)),
    "id_slot": IgnoredParam("a request has no slot of its own", (-1,)),
    **dict.fromkeys(("n_keep", "n_discard", "n_cache_reuse"), _MEMORY),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "adaptive_decay"), _OF_OFF),
    **dict.fromkeys(("t_max_predict_ms", "t_max_prompt_ms"), _TIME),
    "n_indent": IgnoredParam("an answer is not cut by its indentation", (0,)),
    "verbose": IgnoredParam("there is nothing more to report", (False,)),
    "backend_sampling": IgnoredParam("sampling is the same wherever it is done", (False,)),
    "sse_ping_interval": IgnoredParam("'--keep-alive-s' of the server sets it"),
    "typ_p": IgnoredParam(
        "llama-server's own page sends it, and llama-server reads 'typical_p' alone", (1, 1.0)
    ),
    **dict.fromkeys(
        ("chat_parser", "generation_prompt", "preserved_tokens"),
        IgnoredParam("the model's template decides how its output is read"),
    ),
}
"""Fields that clients of llama-server, its own page included, send on all routes."""
LLAMA_SERVER_UNSUPPORTED: UnsupportedParams = {
    "mirostat": UnsupportedParam(_NO_SAMPLER, (0,)),
    "dynatemp_range": UnsupportedParam(_NO_SAMPLER, (0, 0.0)),
    "adaptive_target": UnsupportedParam(_NO_SAMPLER, (-1, -1.0)),
    "min_keep": UnsupportedParam("samplers keep at least one token", (0, 1)),
    "post_sampling_probs": UnsupportedParam("probabilities are those before any sampler", (False,)),
    "grammar_lazy": UnsupportedParam(_TRIGGERS, (False,)),
    "grammar_triggers": UnsupportedParam(_TRIGGERS, ([],)),
}

GENERATION_IGNORED: IgnoredParams = {
    **TIER_IGNORED,
    **LLAMA_SERVER_IGNORED,
    "store": IgnoredParam("answers are not stored", (False,)),
    "verbosity": IgnoredParam("the models were not trained with it; write it in the prompt"),
    "prediction": IgnoredParam("it changes only the speed of an answer at OpenAI"),
    "prompt_cache_key": IgnoredParam(_CACHE),
    "prompt_cache_options": IgnoredParam(_CACHE),
    "prompt_cache_retention": IgnoredParam("cached prompts stay as long as there is room"),
    "reasoning_control": IgnoredParam("thoughts can always be ended; the field is llama-server's", (True,)),
    "chat_format": IgnoredParam("the model's template decides it; the field is llama-server's"),
    "request_id": IgnoredParam("use the header 'X-Request-Id'; the field is vLLM's"),
    "spaces_between_special_tokens": IgnoredParam(
        "special tokens are never shown; the field is vLLM's", (True,)
    ),
    "vllm_xargs": IgnoredParam("it is for extensions of vLLM"),
    "kv_transfer_params": IgnoredParam("no other server sends computed prompts; the field is vLLM's"),
    "guided_decoding_backend": IgnoredParam(
        "the server has one backend, which enforces the same forms; the field is vLLM's"
    ),
}
GENERATION_UNSUPPORTED: UnsupportedParams = {
    **LLAMA_SERVER_UNSUPPORTED,
    "modalities": UnsupportedParam("the models answer with text only", (["text"],)),
    "audio": UnsupportedParam("the models cannot speak"),
    "web_search_options": UnsupportedParam("the server does not search the web"),
    "moderation": UnsupportedParam("the server does not moderate content"),
    "guided_whitespace_pattern": UnsupportedParam("'--json-whitespace' of the server sets it"),
    "length_penalty": UnsupportedParam("it is for beam search, which is not supported", (1, 1.0)),
    "use_beam_search": UnsupportedParam("beam search is not supported", (False,)),
    "n_probs": UnsupportedParam("use 'logprobs'", (0,)),
    "reasoning_format": UnsupportedParam(
        "thoughts are separated from the answer, or '--reasoning-format' of the server is none",
        ("auto", "deepseek", "deepseek-legacy"),
    ),
    "parse_tool_calls": UnsupportedParam("tool calls are always separated from the answer", (True,)),
    "return_tokens": UnsupportedParam("'/completion' returns them", (False,)),
    "response_fields": UnsupportedParam("'/completion' takes it", ([],)),
    "n_cmpl": UnsupportedParam("use 'n'", (1,)),
    "allowed_token_ids": UnsupportedParam("use a 'grammar', 'choice' or 'logit_bias'", ([],)),
    "return_token_ids": UnsupportedParam("'/completion' returns them ('return_tokens')", (False,)),
    "return_tokens_as_token_ids": UnsupportedParam("tokens are returned as texts and bytes", (False,)),
    "detokenize": UnsupportedParam("answers are texts", (True,)),
    "logits_processors": UnsupportedParam("requests cannot contain code", ([],)),
    "mm_processor_kwargs": UnsupportedParam("the model's file determines how pictures are read", ({},)),
    "documents": UnsupportedParam("put them in a message", ([],)),
    "prompt_logprobs": UnsupportedParam("use 'echo' with 'logprobs' of /v1/completions"),
    "skip_special_tokens": UnsupportedParam("special tokens are never shown", (True,)),
    "include_stop_str_in_output": UnsupportedParam("stop strings are never shown", (False,)),
}

STREAM_IGNORED: IgnoredParams = {
    "include_obfuscation": IgnoredParam("chunks carry no random padding", (False,))
}
STREAM_UNSUPPORTED: UnsupportedParams = {
    "continuous_usage_stats": UnsupportedParam("usage is sent once, in the last chunk", (False,))
}

RESPONSES_IGNORED: IgnoredParams = {
    "service_tier": IgnoredParam("other names belong to price lists of other services", (*TIERS, "fast")),
    "prompt_cache_options": IgnoredParam(_CACHE),
    "prompt_cache_retention": IgnoredParam("cached prompts stay as long as there is room"),
    "client_metadata": IgnoredParam("it is for OpenAI's statistics"),
    "personality": IgnoredParam("the models have no choice of it"),
    "background_options": IgnoredParam("background responses run as soon as there is room"),
    "access_programs": IgnoredParam("it is about models of OpenAI's"),
}
REASONING_UNSUPPORTED: UnsupportedParams = {
    "context": UnsupportedParam("the chat template decides which earlier thoughts the model sees", ("auto",)),
    "mode": UnsupportedParam("a model thinks in one way", ("standard",)),
}
RESPONSES_UNSUPPORTED: UnsupportedParams = {
    "prompt": UnsupportedParam("there are no stored templates of prompts"),
    "moderation": UnsupportedParam("the server does not moderate content"),
}

_SPEAKERS = "speakers are not distinguished"
TRANSCRIPTION_UNSUPPORTED: UnsupportedParams = {
    "known_speaker_names": UnsupportedParam(_SPEAKERS, ([],)),
    "known_speaker_references": UnsupportedParam(_SPEAKERS, ([],)),
}

EMBEDDING_IGNORED: IgnoredParams = {
    **TIER_IGNORED,
    "input_type": IgnoredParam(
        "the server adds no prefix to an input; if a model needs one, such as 'query: ', include it"
    ),
}
OLLAMA_EMBED_IGNORED: IgnoredParams = {
    "options": IgnoredParam("they are for answers and for Ollama's own runner"),
    "keep_alive": IgnoredParam("the server decides how long models stay"),
}
EMBEDDING_UNSUPPORTED: UnsupportedParams = {
    "normalize": UnsupportedParam("vectors always have length 1", (True,)),
    "task": UnsupportedParam("the model embeds in one way"),
    "late_chunking": UnsupportedParam("each input is embedded by itself", (False,)),
}

RERANK_IGNORED: IgnoredParams = {
    **TIER_IGNORED,
    "max_chunks_per_doc": IgnoredParam("documents are not split into chunks"),
}
RERANK_UNSUPPORTED: UnsupportedParams = {
    "max_tokens_per_doc": UnsupportedParam("'truncate' cuts documents to the model's limit"),
    "rank_fields": UnsupportedParam("only 'text' of a document is read", (["text"],)),
}

MESSAGE_UNSUPPORTED: UnsupportedParams = {
    "images": UnsupportedParam("pictures are parts of 'content', of type 'image_url'", ([],)),
    "videos": UnsupportedParam("videos are not supported", ([],)),
    "audio": UnsupportedParam("sounds are parts of 'content', of type 'input_audio'"),
}


def is_one_of(value: object, values: Sequence[object]) -> bool:
    """Compare as JSON does: `0` is not `false`."""
    return any(type(one) is type(value) and one == value for one in values)
