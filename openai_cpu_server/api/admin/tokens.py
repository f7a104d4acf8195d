from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, ClassVar, Union

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.chat.schema import ChatBody, Messages, Tools
from openai_cpu_server.api.chat.to_params import chat_params
from openai_cpu_server.api.generation.params import LONG_BODY, GenerationParams, JsonObject
from openai_cpu_server.api.generation.resolve import PromptEnds, tokens_of
from openai_cpu_server.api.generation.sampling import check_tokens
from openai_cpu_server.api.generation.schema import TextOrList
from openai_cpu_server.api.state import AppState, chosen_model, read_body
from openai_cpu_server.contract.media import is_row
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import wrong
from openai_cpu_server.http.body import in_thread, off_loop
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import WORK
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.json_size import MOST_TOKENS
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import whole_prompt

MixedContent = TextOrList[list[Union[int, str]]]


class TokenizeBody(Body):
    """Exactly one of `content` (llama-server), `prompt` (vLLM) and `messages`. Fields for messages are
    rejected with a text, and the other way round."""

    model: str | None = None
    content: MixedContent | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special: bool | None = None
    """Put BOS first if the model wants it. Default: only for `prompt`, and for messages without it."""
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    """Parse names of control tokens in a text. Default: for models that generate."""
    with_pieces: bool | None = None
    return_token_strs: bool | None = None

    add_generation_prompt: bool | None = None
    """Default: true."""
    continue_final_message: bool | None = None
    """Default: unless `add_generation_prompt` is false."""
    tools: Tools | None = None
    chat_template: str | None = None
    chat_template_kwargs: Annotated[JsonObject, Field(max_length=64)] | None = None


_OF_MESSAGES = (
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
    "chat_template_kwargs",
)


class DetokenizeBody(Body):
    most_numbers: ClassVar[int] = MOST_TOKENS

    model: str | None = None
    tokens: Annotated[list[Union[int, None]], Field(max_length=262_144, fail_fast=True)]
    """Null, as `/tokenize` returns it for a row of a picture or sound, has no text."""


_MEDIA = "<__media__>"
"""Marker of llama-server."""
_SLICE = 10_000
"""Pieces encoded at once, because other threads wait meanwhile."""


class TokenPiece(msgspec.Struct, frozen=True):
    id: int | None
    """Null for a row of a picture or sound."""
    piece: Union[str, tuple[int, ...]]
    """Bytes for an incomplete character."""


class Tokenized(msgspec.Struct, frozen=True, omit_defaults=True):
    tokens: msgspec.Raw
    count: int
    max_model_len: int | None
    token_strs: msgspec.Raw | None = None


class ApplyTemplateBody(ChatBody):
    """Accepts all fields of a chat, but only those of the prompt have an effect."""

    is_open: ClassVar[bool] = True


class AppliedTemplate(msgspec.Struct, frozen=True):
    prompt: str


class Detokenized(msgspec.Struct, frozen=True):
    content: str
    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True):
    """Part of vLLM's tokenizer info that clients such as lm-evaluation-harness read."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    model_max_length: int | None
    chat_template: str | None


_route = partial(ApiRoute, access=WORK, tag="Tokens", errors=(404,))


class TokenRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = state.models
        self._attachments = state.generation.attachments

    @_route("POST", "/tokenize", body=TokenizeBody, answer=Tokenized)
    async def tokenize(self, request: Request) -> Response:
        """Convert a text or messages to tokens."""
        body, ignored, size = await read_body(TokenizeBody, request)
        model = (await chosen_model(self._models, request, body.model)).model
        limit = model.engine.info.context_limit if model.engine.info else None
        params = None
        if body.messages is not None:
            chat = ChatBody(
                messages=body.messages,
                tools=body.tools,
                chat_template=body.chat_template,
                chat_template_kwargs=body.chat_template_kwargs,
            )
            owner = context_of(request.scope).owner
            params = await self._attachments.resolve(chat_params(chat), model, owner)
        answer = await in_thread(partial(_tokenized, body, model, limit, params), is_slow=size > LONG_BODY)
        return Response(answer, media_type="application/json", headers=ignored.headers)

    @_route("POST", "/detokenize", body=DetokenizeBody, answer=Detokenized)
    async def detokenize(self, request: Request) -> Response:
        """Convert tokens to text."""
        body, ignored, size = await read_body(DetokenizeBody, request)
        model = (await chosen_model(self._models, request, body.model)).model
        tokens = [token for token in body.tokens if token is not None]

        def text() -> str:
            check_tokens(tuple(tokens), vocab_size=model.tokenizer.vocab_size, param="tokens")
            return model.tokenizer.decode(tokens, special=True)

        found = await off_loop(size, text)
        return json_response(Detokenized(found, found), headers=ignored.headers)

    @_route("POST", "/apply-template", body=ApplyTemplateBody, answer=AppliedTemplate)
    async def apply_template(self, request: Request) -> Response:
        """Render a conversation as the text of its prompt."""
        body, ignored, size = await read_body(ApplyTemplateBody, request)
        model = (await chosen_model(self._models, request, body.model)).model
        params = chat_params(body.model_copy(update={"add_generation_prompt": None}))
        params = await self._attachments.resolve(params, model, context_of(request.scope).owner)
        answer = await in_thread(partial(_applied, body, params, model), is_slow=size > LONG_BODY)
        return json_response(answer, headers=ignored.headers)

    @_route("GET", "/tokenizer_info", query={"model": {"type": "string"}}, answer=TokenizerInfo)
    async def info(self, request: Request) -> Response:
        """Describe the tokenizer of a model."""
        model = (await chosen_model(self._models, request, request.query_params.get("model"))).model
        info, tokenizer = model.engine.info, model.tokenizer
        return json_response(
            TokenizerInfo(
                tokenizer_class="llama.cpp",
                bos_token=tokenizer.bos_text or None,
                eos_token=tokenizer.eos_text or None,
                model_max_length=info.context_limit if info else None,
                chat_template=model.template_source,
            )
        )


def _tokenized(
    body: TokenizeBody, model: ServedModel, limit: int | None, params: GenerationParams | None
) -> bytes:
    """Encode in the same thread, because the pieces can be many times larger than the body."""
    tokens, texts = _tokens(body, model, limit, params), None

    def pieces(token: int) -> bytes:
        return b"" if is_row(token) else model.tokenizer.piece(token, special=True)

    def shown_token(token: int) -> TokenPiece | int | None:
        number = None if is_row(token) else token
        if not body.with_pieces:
            return number
        try:
            return TokenPiece(number, pieces(token).decode())
        except UnicodeDecodeError:
            return TokenPiece(number, tuple(pieces(token)))

    shown = _encoded(tokens, shown_token)
    if body.return_token_strs:
        texts = _encoded(tokens, lambda token: pieces(token).decode(errors="replace"))
    return msgspec.json.encode(Tokenized(shown, len(tokens), limit, texts))


def _encoded(tokens: Sequence[int], show: Callable[[int], object]) -> msgspec.Raw:
    slices = (tokens[at : at + _SLICE] for at in range(0, len(tokens), _SLICE))
    parts = (msgspec.json.encode([show(token) for token in part])[1:-1] for part in slices)
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _tokens(
    body: TokenizeBody, model: ServedModel, limit: int | None, chat: GenerationParams | None
) -> tuple[int, ...]:
    if [body.content, body.prompt, body.messages].count(None) != 2:
        raise wrong("Give exactly one of 'content', 'prompt' and 'messages'.", "content")
    add_special = body.add_special_tokens if body.add_special is None else body.add_special
    if body.messages is not None and chat is not None:
        return tokens_of(chat, model, _prompt_ends(body, body.messages, add_special))
    if strange := next((name for name in _OF_MESSAGES if getattr(body, name) is not None), None):
        raise wrong("This field needs 'messages'.", strange)
    content = body.content if body.prompt is None else body.prompt
    assert content is not None, "one of the three is set"
    ids = tuple(item for item in content if isinstance(item, int))
    check_tokens(ids, vocab_size=model.tokenizer.vocab_size, param="content")
    begins = body.prompt is not None if add_special is None else add_special
    is_prompt = model.kind is ModelKind.GENERATES  # texts of models that embed or rank are not prompts
    parse_special = is_prompt if body.parse_special is None else body.parse_special
    return whole_prompt(
        content, model.tokenizer, most_tokens=limit, add_special=begins, parse_special=parse_special
    )


def _prompt_ends(body: TokenizeBody, messages: Messages, has_marks: bool | None) -> PromptEnds:
    if body.parse_special is not None:
        raise wrong("Contents of messages are always text.", "parse_special")
    begins_answer = body.add_generation_prompt is not False or bool(body.continue_final_message)
    if body.continue_final_message and (body.add_generation_prompt or messages[-1].role != "assistant"):
        what = "begin another answer" if body.add_generation_prompt else "end with another's message"
        raise wrong(f"A conversation cannot be continued and {what}.", "continue_final_message")
    return PromptEnds(begins_answer=begins_answer, has_marks=has_marks)


def _applied(body: ApplyTemplateBody, params: GenerationParams, model: ServedModel) -> AppliedTemplate:
    ends = PromptEnds(begins_answer=body.add_generation_prompt is not False)
    tokens, tokenizer = tokens_of(params, model, ends), model.tokenizer
    begins = tokenizer.adds_bos and tokens[:1] == (tokenizer.bos,)
    runs = groupby(tokens[int(begins) :], is_row)
    texts = (_MEDIA if of_rows else tokenizer.decode([*run], special=True) for of_rows, run in runs)
    return AppliedTemplate("".join(texts))


ROUTER = ApiRouter[AppState](TokenRoutes)
