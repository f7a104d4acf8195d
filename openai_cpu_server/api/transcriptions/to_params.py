"""Conversion of a recording and its form to a `GenerationParams`."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.generation.params import (
    AttachmentKind,
    ConversationParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ReasoningParam,
    RecordingParam,
    mark_of,
)
from openai_cpu_server.api.generation.to_params import one_form, shared_forms, shared_params
from openai_cpu_server.api.transcriptions.schema import RecordingBody
from openai_cpu_server.errors import wrong

_PIECE_S = 29.9
"""Whisper's encoders take 30 seconds, but at exactly 30 they add a second part of silence."""
_PIECE_TOKENS = 1024
"""Default for a piece, five times the speech it can hold, because some models repeat themselves endlessly."""
_WORDS = {
    "transcribe": "Write down what is said in this recording, word for word, in the language that is spoken. "
    "Answer with these words alone.",
    "translate": "Translate what is said in this recording into English. Answer with the translation alone.",
}
_TRAINED = {"lfm2": "Perform ASR."}
"""System message for transcription by architecture, as in llama-server, without other instructions."""


def recording_params(body: RecordingBody, data: bytes, task: str) -> GenerationParams:
    _check_together(body)
    mark = mark_of(AttachmentKind.SOUND, body.file, str(len(data)))
    languages = ", ".join(filter(None, (body.language, *(body.languages or ()))))
    hints = [
        *([f"Language: {languages}."] if languages else ()),
        *([f"Words that may occur: {', '.join(body.keywords)}."] if body.keywords else ()),
        *([f"What was said before, or is known about it: {body.prompt}"] if body.prompt else ()),
    ]
    prompt = ConversationParam([_message("user", mark, "\n".join((_WORDS[task], *hints)))], "file")
    trained = {
        architecture: (_message("system", words), _message("user", mark, *hints))
        for architecture, words in _TRAINED.items()
        if task == "transcribe"
    }
    params = shared_params(body, prompt, id_prefix="transcribe-", form=one_form(shared_forms(body)))
    sampling, limit = params.sampling, body.max_completion_tokens or body.max_tokens
    values = msgspec.structs.replace(sampling.values, temperature=body.temperature or 0.0)
    return msgspec.structs.replace(
        params,
        sampling=msgspec.structs.replace(sampling, values=values, sent=sampling.sent | {"temperature"}),
        recording=RecordingParam(mark, data, "file", _PIECE_S, trained),
        max_tokens=LimitParam(
            limit or _PIECE_TOKENS, "max_completion_tokens", is_ceiling=True, is_unlimited=limit is None
        ),
        thinking=ReasoningParam(is_on=False, is_hidden=True),
        logprobs=0 if body.form == "verbose_json" or body.include else None,
        num_bytes=len(data),
    )


def _check_together(body: RecordingBody) -> None:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise wrong("'max_tokens' and 'max_completion_tokens' name the same limit but differ.", "max_tokens")
    if body.timestamp_granularities and body.form != "verbose_json":
        name = "timestamp_granularities"
        raise wrong(f"'{name}' is only allowed with the response_format 'verbose_json'.", name)
    if body.include and body.form != "json":
        raise wrong("'include' is only allowed with the response_format 'json'.", "include")
    if body.stream and body.form not in ("json", "text"):
        message = f"'{body.form}' cannot be streamed, because events contain only the text."
        raise wrong(message, "response_format")


def _message(role: str, *texts: str) -> MessageParam:
    content = [{"type": "text", "text": text} for text in texts]
    return MessageParam({"role": role, "content": content}, path="prompt")
