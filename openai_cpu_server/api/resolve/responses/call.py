"""A turn becomes a `Call`; where it may, it leaves out items that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.api.calls.call import Asking, Call
from openai_cpu_server.api.resolve.call import fingerprint
from openai_cpu_server.api.resolve.chat import chat_prompt, resolve_chat
from openai_cpu_server.api.resolve.responses.chat import Turn, chat_body, is_too_long
from openai_cpu_server.api.resolve.responses.conversation import Told
from openai_cpu_server.api.resolve.responses.fitting import fitted
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import InvalidRequest, PromptFarTooLong, ServerError
from openai_cpu_server.prompt.written import Written

_ROOM = 1024
"""So many tokens stay free for an answer of no given length, or a quarter of the context."""
ID_PREFIX = "resp_"
_NAMES = {"reasoning_effort": "reasoning.effort"}


def vocabulary(info: ModelInfo) -> str:
    """Equal for models whose tokens mean the same; an adapter changes none of them."""
    return fingerprint(info)


def resolve_turn(turn: Turn, body: ChatBody, asking: Asking) -> Call:
    """`body`: what was made of the whole turn. Raises what `resolve_chat` raises."""
    try:
        return _resolved(turn.told, body, asking)
    except ServerError as error:
        if turn.body.truncation != "auto" or not is_too_long(error):
            raise
        kept = fitted(turn.told, lambda told: _fits(turn, told, asking))
        if kept is None:
            raise
    return _resolved(kept, chat_body(turn, kept), asking)


def prompt_tokens(turn: Turn, told: Sequence[Told], asking: Asking) -> int:
    """How many tokens the prompt has. Raises InvalidRequest, TemplateFailed."""
    written = _written(told, asking.info)
    return len(chat_prompt(chat_body(turn, told), asking.chosen.model, written, param="input").tokens)


def _resolved(told: Sequence[Told], body: ChatBody, asking: Asking) -> Call:
    written = _written(told, asking.info)
    return resolve_chat(
        body, asking, id_prefix=ID_PREFIX, prompt_param="input", names=_NAMES, written=written
    )


def _fits(turn: Turn, told: Sequence[Told], asking: Asking) -> bool:
    context = asking.info.context_limit
    room = turn.body.max_output_tokens or min(_ROOM, context // 4)
    limit = min(context - room, asking.options.max_prompt_tokens or context)
    try:
        return prompt_tokens(turn, told, asking) <= limit
    except InvalidRequest as error:
        if error.code == PromptFarTooLong.code:
            return False
        raise


def _written(told: Sequence[Told], info: ModelInfo) -> Written:
    """The answers of before that this very model wrote."""
    own = vocabulary(info)
    return {
        index: one.answer.tokens
        for index, one in enumerate(told)
        if one.answer is not None and one.answer.tokens and one.answer.vocabulary == own
    }
