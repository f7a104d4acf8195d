"""A conversation becomes a prompt: for every family whose clients send messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from openai_cpu_server.answers.question import Turn
from openai_cpu_server.api.asking.ask import Ask, AskedConversation, AskedMessage
from openai_cpu_server.api.calls.call import fingerprint
from openai_cpu_server.api.resolve.thinking import thinking_plan
from openai_cpu_server.api.resolve.tools import ToolPlan
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation
from openai_cpu_server.prompt.written import Written

_BLANK = "..."
"""It stands in the place of a turn; templates may do other things with an empty one."""
Messages = Sequence[AskedMessage]


class PromptMaker:
    """Makes prompts of messages for one model, with all else that one call says."""

    def __init__(
        self, ask: Ask, path: str, plan: ToolPlan | None, model: ServedModel, info: ModelInfo | None
    ) -> None:
        """`path` is blamed for what cannot be made a prompt. `info`: None for a model that is not loaded."""
        self.thinking = thinking_plan(ask.thinking, model.thinking)
        self._given = ask.thinking.variables
        self._path = path
        self._plan = plan
        self._model = model
        self._info = info

    def prompt(self, messages: Messages) -> ChatPrompt:
        """Raises InvalidRequest."""
        try:
            return self._rendered(messages, self.thinking.variables)
        except TemplateFailed as error:
            is_givens = bool(self._given) and self._renders_without_given(messages)
            path = "chat_template_kwargs" if is_givens else self._path
            raise InvalidRequest(str(error), param=path, code="chat_template_failed") from error
        except InvalidRequest as error:
            if error.param is not None:
                raise
            raise InvalidRequest(str(error), param=self._path, code=error.code) from None

    def _renders_without_given(self, messages: Messages) -> bool:
        own = {name: value for name, value in self.thinking.variables.items() if name not in self._given}
        try:
            self._rendered(messages, own)
        except TemplateFailed:
            return False
        return True

    def _rendered(self, messages: Messages, variables: Mapping[str, object]) -> ChatPrompt:
        info = self._info
        return self._model.prompts.prompt(
            Conversation(
                messages=[message.fields for message in messages],
                tools=self._plan.shown if self._plan else (),
                written={} if info is None else _written(messages, info),
                variables=variables,
                thinks_not=self.thinking.thinks_not,
                most_tokens=None if info is None else info.context_limit,
            )
        )


def last_turn(messages: Messages, tokens: Callable[[Messages], tuple[int, ...]]) -> Turn | None:
    """The last user turn, and what is around it; None: no user has said anything. Raises what `tokens`
    raises."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if not users:
        return None
    last = users[-1]
    blank = AskedMessage({**messages[last].fields, "content": _BLANK})
    return Turn(messages[last].text, tokens([*messages[:last], blank, *messages[last + 1 :]]))


def _written(messages: Messages, info: ModelInfo) -> Written:
    """The answers of before that this very model wrote; an adapter changes none of its tokens."""
    own = fingerprint(info) if any(message.own for message in messages) else ""
    return {
        index: message.own.tokens
        for index, message in enumerate(messages)
        if message.own is not None and message.own.tokens and message.own.vocabulary == own
    }


# -- what is left out where it is too long ---------------------------------------------------------------

_STRIDE = 8
"""Where much is left, exchanges are left out in such steps: the next turns then begin alike, and find their
prompts computed."""


def shortened(
    conversation: AskedConversation, fits: Callable[[Messages], bool]
) -> Sequence[AskedMessage] | None:
    """The longest of the ways to shorten it that fits; None: not even the shortest does.

    The system message stays. First whole exchanges go, the oldest first; of the last one the question stays,
    and what the model did since goes step by step, but for the last step.
    """
    ways = _ways(list(conversation.messages))
    low, high = 0, len(ways)
    while low < high:
        middle = (low + high) // 2
        if fits(ways[middle]):
            high = middle
        else:
            low = middle + 1
    return ways[low] if low < len(ways) else None


def _ways(messages: list[AskedMessage]) -> list[list[AskedMessage]]:
    """All that may be left, each part of the one before."""
    head = [one for one in messages[:1] if one.role == "system"]
    exchanges = _split(messages[len(head) :], "user")
    last = _split(exchanges[-1], "assistant") if exchanges else []
    ways = [head + _joined(exchanges[count:]) for count in _counts(len(exchanges))]
    ways += [head + last[0] + _joined(last[count:]) for count in range(2, len(last))]
    return ways


def _counts(num_exchanges: int) -> list[int]:
    """How many exchanges may be left out."""
    strides = range(_STRIDE, num_exchanges - _STRIDE, _STRIDE)
    single = range(max(strides.stop if strides else 1, 1), num_exchanges)
    return sorted({*strides, *single})


def _split(messages: Messages, role: str) -> list[list[AskedMessage]]:
    """Parts that each begin with a message of this role."""
    parts: list[list[AskedMessage]] = []
    for one in messages:
        if one.role == role or not parts:
            parts.append([])
        parts[-1].append(one)
    return parts


def _joined(parts: Sequence[Messages]) -> list[AskedMessage]:
    return [one for part in parts for one in part]
