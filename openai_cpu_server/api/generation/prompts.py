"""Prompts from conversations and texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, takewhile
from typing import NamedTuple, Union

from openai_cpu_server.answers.store import LastTurn
from openai_cpu_server.api.generation.call import Prompt, fingerprint
from openai_cpu_server.api.generation.output import ToolPlan
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    FileParam,
    GenerationParams,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.sampling import check_tokens
from openai_cpu_server.api.generation.thinking import thinking_plan
from openai_cpu_server.contract.media import shown_tokens
from openai_cpu_server.contract.model_info import FimTokens, ModelInfo, Tokenizer
from openai_cpu_server.errors import InvalidRequest, TemplateFailed, wrong
from openai_cpu_server.models.served import ServedModel, ServedTemplate
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation, Written, whole_prompt
from openai_cpu_server.prompt.template import fim_tokens

_BLANK = "..."
"""Placeholder of a turn. Templates may treat an empty one differently."""
Messages = Sequence[MessageParam]


class PromptEnds(NamedTuple):
    begins_answer: bool = True
    has_marks: bool | None = None
    """True to begin with BOS, or None to let model and template decide."""


WHOLE = PromptEnds()


class PromptMaker:
    def __init__(
        self,
        ask: GenerationParams,
        path: str,
        plan: ToolPlan | None,
        model: ServedModel,
        info: ModelInfo | None,
        ends: PromptEnds = WHOLE,
    ) -> None:
        """`path`: field that errors name. `info`: None if not loaded. Raises InvalidRequest."""
        self.template = _template(ask, model, plan)
        self.thinking = thinking_plan(ask.thinking, self.template.thinking)
        self._given = ask.thinking.variables
        self._media = ask.media
        self._cuts = ask.last_tokens is not None
        self._path = path
        self._plan = plan
        self._model = model
        self._info = info
        self._ends = ends

    def prompt(self, messages: Messages) -> ChatPrompt:
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
                template=self.template.name,
                written={} if info is None else _written(messages, info),
                variables=variables,
                thinks_not=self.thinking.thinks_not,
                most_tokens=None if info is None or self._cuts else info.context_limit,
                begins_answer=self._ends.begins_answer,
                has_marks=self._ends.has_marks,
                shown={one.mark: shown_tokens(one.item, one.shape) for one in self._media},
                # Without a state a sequence begins anywhere: to look for borders would be in vain.
                marks_borders=info is None or info.state_bytes > 0,
            )
        )


def _template(ask: GenerationParams, model: ServedModel, plan: ToolPlan | None) -> ServedTemplate:
    said = ask.prompt.messages if isinstance(ask.prompt, ConversationParam) else ()
    return model.template(
        ask.template, has_tools=plan is not None or any(one.fields.get("tool_calls") for one in said)
    )


def last_turn(messages: Messages, tokens: Callable[[Messages], tuple[int, ...]]) -> LastTurn | None:
    """Return the last user turn with its surroundings. Raises the errors of `tokens`."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if not users:
        return None
    last = users[-1]
    blank = MessageParam({**messages[last].fields, "content": _BLANK})
    return LastTurn(messages[last].text, tokens([*messages[:last], blank, *messages[last + 1 :]]))


def _written(messages: Messages, info: ModelInfo) -> Written:
    """Return the earlier answers of this very model. Adapters change none of its tokens."""
    own = fingerprint(info) if any(message.own for message in messages) else ""
    return {
        index: message.own.tokens
        for index, message in enumerate(messages)
        if message.own is not None and message.own.tokens and message.own.vocabulary == own
    }


# -- what is left out where it is too long ---------------------------------------------------------------

_STRIDE = 8
"""Step of dropping exchanges from long conversations, so that next turns share a computed prefix."""


def shortened(
    conversation: ConversationParam, fits: Callable[[Messages], bool]
) -> Sequence[MessageParam] | None:
    """Drop the oldest exchanges until the rest fits, or return None. Leading system messages, the last
    question and the model's last step stay."""
    ways = _ways(list(conversation.messages))
    low, high = 0, len(ways)
    while low < high:
        middle = (low + high) // 2
        if fits(ways[middle]):
            high = middle
        else:
            low = middle + 1
    return ways[low] if low < len(ways) else None


def _ways(messages: list[MessageParam]) -> list[list[MessageParam]]:
    head = [*takewhile(lambda one: one.role in ("system", "developer"), messages)]
    exchanges = _split(messages[len(head) :], "user")
    last = _split(exchanges[-1], "assistant") if exchanges else []
    ways = [[*head, *chain(*exchanges[count:])] for count in _counts(len(exchanges))]
    ways += [[*head, *last[0], *chain(*last[count:])] for count in range(2, len(last))]
    return ways


def _counts(num_exchanges: int) -> list[int]:
    strides = range(_STRIDE, num_exchanges - _STRIDE, _STRIDE)
    single = range(max(strides.stop if strides else 1, 1), num_exchanges)
    return sorted({*strides, *single})


def _split(messages: Messages, role: str) -> list[list[MessageParam]]:
    parts: list[list[MessageParam]] = []
    for one in messages:
        if one.role == role or not parts:
            parts.append([])
        parts[-1].append(one)
    return parts


Text = Union[str, Sequence[Union[int, str]]]


def text_prompts(asked: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None) -> list[Prompt]:
    """Make prompts. Texts surely above `most_tokens` are not tokenized. Raises PromptFarTooLong,
    InvalidRequest."""
    fills = asked.suffix or asked.files is not None or tokenizer.fim is not None
    if asked.suffix is None or not fills:
        return [_plain(prompt, tokenizer, most_tokens, echo=asked.echo) for prompt in asked.prompts]
    if asked.echo and asked.files is None:
        raise wrong("'echo' and 'suffix' cannot be combined.", "suffix")
    return [_fill_in(prompt, asked.suffix, asked, tokenizer, most_tokens) for prompt in asked.prompts]


def _plain(prompt: Text, tokenizer: Tokenizer, most_tokens: int | None, *, echo: bool) -> Prompt:
    tokens = _tokens(prompt, tokenizer, most_tokens, add_special=True)
    if not tokens:
        message = "Invalid value for 'prompt': it is empty, and this model has no token to begin with."
        raise wrong(message, "prompt")
    return Prompt(tokens, _text(prompt, tokenizer) if echo else None)


def _fill_in(
    prefix: Text, suffix: str, asked: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None
) -> Prompt:
    fim, path = tokenizer.fim, asked.suffix_path
    if fim is None:
        message = f"'{path}' is not supported by this model: it has no fill-in-the-middle tokens."
        raise InvalidRequest(message, param=path, code="unsupported_parameter")
    before = _tokens(prefix, tokenizer, most_tokens, add_special=False)
    after = _tokens(suffix, tokenizer, most_tokens, add_special=False)
    begin = (tokenizer.bos,) if tokenizer.adds_bos and tokenizer.bos is not None else ()
    gap = fim_tokens(before, after, fim)
    if asked.files is None:
        return Prompt((*begin, *gap))
    room = len(gap) if most_tokens is None else most_tokens - len(begin) - len(gap) - asked.answer_room
    tokens = (*begin, *_files(asked.files, fim, tokenizer, room), *gap)
    return Prompt(tokens, tokenizer.decode(tokens, special=True) if asked.echo else None)


_PROJECT, _THIS_FILE = "myproject\n", "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Texts of llama-server, like the two above, so that a model fills in the same."""


def _files(files: Sequence[FileParam], fim: FimTokens, tokenizer: Tokenizer, room: int) -> list[int]:
    plain = partial(tokenizer.encode, add_special=False, parse_special=False)
    begin = [] if fim.repository is None else [fim.repository, *plain(_PROJECT)]
    told = [] if fim.file is None else [fim.file, *plain(_THIS_FILE)]
    for file in reversed(files):
        if tokenizer.least_tokens(file.text) > room:
            break
        name = plain(_SNIPPET) if fim.file is None else [fim.file, *plain(f"{file.name}\n")]
        part = [*name, *plain(file.text)]
        if len(begin) + len(part) + len(told) > room:
            break
        told = part + told
    return begin + told


def _tokens(
    prompt: Text, tokenizer: Tokenizer, most_tokens: int | None, *, add_special: bool
) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return whole_prompt(prompt, tokenizer, add_special=add_special, most_tokens=most_tokens)
    tokens: list[int] = []
    for at, item in enumerate(prompt):
        if isinstance(item, int):
            tokens.append(item)
        else:
            marks = add_special and at == 0
            tokens += whole_prompt(item, tokenizer, add_special=marks, most_tokens=most_tokens)
    return check_tokens(tuple(tokens), vocab_size=tokenizer.vocab_size, param="prompt")


def _text(prompt: Text, tokenizer: Tokenizer) -> str:
    if isinstance(prompt, str):
        return prompt
    items = prompt[1:] if prompt[0] == tokenizer.bos else prompt
    stretches = groupby(items, key=lambda item: isinstance(item, str))
    return "".join(
        "".join(map(str, stretch))
        if is_text
        else tokenizer.decode([int(item) for item in stretch], special=True)
        for is_text, stretch in stretches
    )
