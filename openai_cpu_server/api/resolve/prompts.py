"""Prompts that are texts: strings are tokenised, token ids are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from openai_cpu_server.api.asking.ask import AskedTexts, wrong
from openai_cpu_server.api.calls.call import Prompt
from openai_cpu_server.api.resolve.sampling import check_tokens
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.chat_prompts import whole_prompt
from openai_cpu_server.prompt.fim import fim_tokens

Text = Union[str, Sequence[int]]


def text_prompts(asked: AskedTexts, tokenizer: Tokenizer, most_tokens: int | None) -> list[Prompt]:
    """`most_tokens`: what is surely longer is not tokenised. Raises PromptFarTooLong, InvalidRequest for an
    empty prompt, unknown ids, or a suffix that the model cannot honour."""
    if asked.suffix is None or (not asked.suffix and tokenizer.fim is None):
        return [_plain(prompt, tokenizer, most_tokens, echo=asked.echo) for prompt in asked.prompts]
    if asked.echo:
        raise wrong("'echo' and 'suffix' cannot be combined.", "suffix")
    return [_fill_in(prompt, asked.suffix, tokenizer, most_tokens) for prompt in asked.prompts]


def _plain(prompt: Text, tokenizer: Tokenizer, most_tokens: int | None, *, echo: bool) -> Prompt:
    tokens = _tokens(prompt, tokenizer, most_tokens, add_special=True)
    if not tokens:
        message = "Invalid value for 'prompt': it is empty, and this model has no token to begin with."
        raise InvalidRequest(message, param="prompt", code="invalid_value")
    return Prompt(tokens, _text(prompt, tokenizer) if echo else None)


def _fill_in(prefix: Text, suffix: str, tokenizer: Tokenizer, most_tokens: int | None) -> Prompt:
    fim = tokenizer.fim
    if fim is None:
        message = "'suffix' is not supported by this model: it has no fill-in-the-middle tokens."
        raise InvalidRequest(message, param="suffix", code="unsupported_parameter")
    before = _tokens(prefix, tokenizer, most_tokens, add_special=False)
    after = _tokens(suffix, tokenizer, most_tokens, add_special=False)
    begin = (tokenizer.bos,) if tokenizer.adds_bos and tokenizer.bos is not None else ()
    return Prompt((*begin, *fim_tokens(before, after, fim)))


def _tokens(
    prompt: Text, tokenizer: Tokenizer, most_tokens: int | None, *, add_special: bool
) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return whole_prompt(prompt, tokenizer, add_special=add_special, most_tokens=most_tokens)
    return check_tokens(tuple(prompt), vocab_size=tokenizer.vocab_size, param="prompt")


def _text(prompt: Text, tokenizer: Tokenizer) -> str:
    """The text to echo. A leading BOS is not part of anybody's text."""
    if isinstance(prompt, str):
        return prompt
    tokens = list(prompt)
    return tokenizer.decode(tokens[1:] if tokens[0] == tokenizer.bos else tokens, special=True)
