"""Prompts from conversations and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, groupby, takewhile
from typing import Union

from openai_cpu_server.answers.store import LastTurn
from openai_cpu_server.api.generation.call import Prompt
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    FileParam,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.sampling import check_tokens
from openai_cpu_server.contract.model_info import FimTokens, Tokenizer
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.prompt.chat_prompts import whole_prompt
from openai_cpu_server.prompt.template import fim_tokens

_BLANK = "..."
"""Placeholder of a turn. Templates may treat an empty one differently."""
Messages = Sequence[MessageParam]


def last_turn(messages: Messages, tokens: Callable[[Messages], tuple[int, ...]]) -> LastTurn | None:
    """Return the last user turn with its surroundings. Raises the errors of `tokens`."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if not users:
        return None
    last = users[-1]
    blank = MessageParam({**messages[last].fields, "content": _BLANK})
    return LastTurn(messages[last].text, tokens([*messages[:last], blank, *messages[last + 1 :]]))


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
    strides = range(_STRIDE, len(exchanges) - _STRIDE, _STRIDE)
    single = range(max(strides.stop if strides else 1, 1), len(exchanges))
    ways = [[*head, *chain(*exchanges[count:])] for count in sorted({*strides, *single})]
    return ways + [[*head, *last[0], *chain(*last[count:])] for count in range(2, len(last))]


def _split(messages: Messages, role: str) -> list[list[MessageParam]]:
    parts: list[list[MessageParam]] = []
    for one in messages:
        if one.role == role or not parts:
            parts.append([])
        parts[-1].append(one)
    return parts


Text = Union[str, Sequence[Union[int, str]]]


def text_prompts(texts: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None) -> list[Prompt]:
    """Make prompts. Texts surely above `most_tokens` are not tokenized. Raises PromptFarTooLong,
    InvalidRequest."""
    fills = texts.suffix or texts.files is not None or tokenizer.fim is not None
    if texts.suffix is None or not fills:
        return [_plain(prompt, tokenizer, most_tokens, echo=texts.echo) for prompt in texts.prompts]
    if texts.echo and texts.files is None:
        raise wrong("'echo' and 'suffix' cannot be combined.", "suffix")
    return [_fill_in(prompt, texts.suffix, texts, tokenizer, most_tokens) for prompt in texts.prompts]


def _plain(prompt: Text, tokenizer: Tokenizer, most_tokens: int | None, *, echo: bool) -> Prompt:
    tokens = _tokens(prompt, tokenizer, most_tokens, add_special=True)
    if not tokens:
        message = "Invalid value for 'prompt': it is empty, and this model has no token to begin with."
        raise wrong(message, "prompt")
    return Prompt(tokens, _text(prompt, tokenizer) if echo else None)


def _fill_in(
    prefix: Text, suffix: str, texts: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None
) -> Prompt:
    fim, path = tokenizer.fim, texts.suffix_path
    if fim is None:
        message = f"'{path}' is not supported by this model: it has no fill-in-the-middle tokens."
        raise InvalidRequest(message, param=path, code="unsupported_parameter")
    before = _tokens(prefix, tokenizer, most_tokens, add_special=False)
    after = _tokens(suffix, tokenizer, most_tokens, add_special=False)
    begin = (tokenizer.bos,) if tokenizer.adds_bos and tokenizer.bos is not None else ()
    gap = fim_tokens(before, after, fim)
    if texts.files is None:
        return Prompt((*begin, *gap))
    room = len(gap) if most_tokens is None else most_tokens - len(begin) - len(gap) - texts.answer_room
    tokens = (*begin, *_files(texts.files, fim, tokenizer, room), *gap)
    return Prompt(tokens, tokenizer.decode(tokens, special=True) if texts.echo else None)


_PROJECT, _THIS_FILE = "myproject\n", "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Texts of llama-server, like the two above, so that a model fills in the same."""


def _files(files: Sequence[FileParam], fim: FimTokens, tokenizer: Tokenizer, room: int) -> list[int]:
    plain = partial(tokenizer.encode, add_special=False, parse_special=False)
    begin = [] if fim.repository is None else [fim.repository, *plain(_PROJECT)]
    shown = [] if fim.file is None else [fim.file, *plain(_THIS_FILE)]
    for file in reversed(files):
        if tokenizer.least_tokens(file.text) > room:
            break
        name = plain(_SNIPPET) if fim.file is None else [fim.file, *plain(f"{file.name}\n")]
        part = [*name, *plain(file.text)]
        if len(begin) + len(part) + len(shown) > room:
            break
        shown = part + shown
    return begin + shown


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
