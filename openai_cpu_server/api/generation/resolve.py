"""Pure, runs in any thread."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, takewhile
from typing import Union

import msgspec

from openai_cpu_server.answers.store import LastTurn
from openai_cpu_server.api.generation.call import Prompt, ResolveContext, ResolvedRequest, fingerprint
from openai_cpu_server.api.generation.output import (
    PlannedOutput,
    ThinkingOutputs,
    ToolOutputs,
    answer_output,
    check_ends,
    thinking_plan,
    usable_tools,
)
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    ConversationsParam,
    FileParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.sampling import (
    OutputBudget,
    check_tokens,
    choices_of,
    for_choice,
    for_model,
    output_budget,
)
from openai_cpu_server.contract.media import Sound, media_in, shown_tokens
from openai_cpu_server.contract.model_info import FimTokens, ModelInfo, Tokenizer
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, TemplateFailed, wrong
from openai_cpu_server.http.context import Caller
from openai_cpu_server.http.ignored_params import TIERS
from openai_cpu_server.http.keys import Client, account_of
from openai_cpu_server.http.parse import Ignored, first_names, header_safe
from openai_cpu_server.models.routing.router import RouterCaller
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation, Written, whole_prompt
from openai_cpu_server.prompt.template import fim_tokens

UNENFORCED = "x-unenforced-schema-keywords"
_ANSWER_ROOM = 1024
"""Tokens for an unlimited answer to a prompt that may be shortened."""
_MOST_CONTEXT = 2**20
_TOO_LONG = "context_length_exceeded"


def resolve(params: GenerationParams, context: ResolveContext) -> ResolvedRequest:
    """Resolve, with fewer messages if too long. Raises InvalidRequest, PromptTooLong, DeadlyInput."""
    assert not params.attached, "attachments are resolved earlier"
    assert params.recording is None, "likewise"
    try:
        return _resolved(params, context)
    except (InvalidRequest, PromptTooLong) as error:
        # Only where it is too long could fewer messages help.
        is_too_long = isinstance(error, PromptTooLong) or error.code == _TOO_LONG
        shorter = _shorter(params, context) if is_too_long else None
        if shorter is None:
            raise
    return _resolved(shorter, context)


def router_caller_of(params: GenerationParams, caller: Caller) -> RouterCaller:
    """Return the client to queue for. Raises InvalidRequest for an unknown priority."""
    return RouterCaller(
        priority=caller.priority(field=params.priority, tier=params.service_tier),
        client=Client.of(caller.identity, params.user).label,
        account=account_of(caller.identity),
        group=Client.group_of(caller.identity),
    )


def served_tier(requested_tier: str, priority: Priority) -> str:
    """Return the requested tier, or `flex` if the key or the header has lowered its priority."""
    is_lowered = priority is Priority.BATCH and requested_tier in ("priority", "fast")
    return "flex" if is_lowered else requested_tier


def _resolved(params: GenerationParams, context: ResolveContext) -> ResolvedRequest:
    choices = choices_of(params, context.options)
    params, prompts, output = _planned(params, context)
    # To choose the best, log-probabilities are needed, whether they are shown or not.
    is_ranked = choices.made > choices.shown and params.logprobs is None
    common = _request(params, context, output, top_logprobs=0 if is_ranked else params.logprobs)
    call_id = params.call_id or params.id_prefix + secrets.token_hex(12)
    usual = context.chosen.model.defaults.max_output_tokens
    budgets = [
        output_budget(params, len(prompt.tokens), context.info, context.options, usual) for prompt in prompts
    ]
    tier = params.service_tier
    if tier is not None:
        tier = served_tier(tier if tier in TIERS else "default", common.priority)
    return ResolvedRequest(
        id=call_id,
        model=context.chosen.name,
        created=int(time.time()),
        fingerprint=fingerprint(context.info, context.chosen.adapter_key),
        prompts=tuple(prompts),
        requests=tuple(_choice_requests(common, call_id, prompts, budgets, choices.made)),
        n=choices.shown,
        best_of=choices.made,
        priority=common.priority,
        stream=params.stream,
        include_usage=params.include_usage,
        timeout_s=params.timeout_s,
        max_output_tokens=choices.made * _reserved_tokens(params.max_tokens, budgets),
        default_limit=budgets[0].tokens if params.max_tokens is None and usual is not None else None,
        context_ends_it=any(budget.context_ends_it for budget in budgets),
        service_tier=tier,
        metadata=params.metadata,
        shown_logprobs=params.logprobs,
        grammar_path=output.path,
        tool_calls=output.tool_calls,
        thinking=output.thinking,
        is_cached=params.cache is not False,
        is_repeatable=common.sampling.temperature == 0 or params.sampling.is_seeded,
        details=params.details,
        headers=_headers(params, output),
    )


def _planned(
    params: GenerationParams, context: ResolveContext
) -> tuple[GenerationParams, list[Prompt], PlannedOutput]:
    """Prepare prompts and output, and drop what the output or the client does not take."""
    prompts, output = _prepared(params, context)
    if params.last_tokens is not None:
        prompts = _cut(prompts, params, params.last_tokens, context)
    check_ends(params, output)
    if params.stop and not output.takes_stop:
        output = msgspec.structs.replace(output, ignored=(*output.ignored, params.stop_path))
        params = msgspec.structs.replace(params, stop=())
    is_wanted = context.caller.wants_progress() or params.details.progress
    details = msgspec.structs.replace(params.details, progress=params.stream and is_wanted)
    return msgspec.structs.replace(params, details=details), prompts, output


def _choice_requests(
    common: GenerationRequest,
    call_id: str,
    prompts: Sequence[Prompt],
    budgets: Sequence[OutputBudget],
    num_choices: int,
) -> Iterator[GenerationRequest]:
    """Yield the requests of all choices, those of one prompt together."""
    for index, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
        for choice in range(num_choices):
            yield msgspec.structs.replace(
                common,
                id=f"{call_id}/{index * num_choices + choice}",
                tokens=prompt.tokens,
                boundaries=prompt.boundaries,
                media_items=prompt.media_items,
                media=prompt.media,
                max_tokens=budget.tokens,
                sampling=for_choice(common.sampling, choice),
            )


def _reserved_tokens(limit: LimitParam | None, budgets: Sequence[OutputBudget]) -> int:
    """Return the output tokens of one choice of each prompt that the key reserves."""
    if limit is None or limit.is_unlimited:
        return 0
    return sum(budget.tokens if limit.is_ceiling else limit.tokens for budget in budgets)


def _request(
    params: GenerationParams, context: ResolveContext, output: PlannedOutput, *, top_logprobs: int | None
) -> GenerationRequest:
    sampling = for_model(params.sampling, context.chosen.model.tokenizer, vocab_size=context.info.vocab_size)
    identity, router_caller = context.caller.identity, router_caller_of(params, context.caller)
    key = identity.digest if context.options.isolate_by_key else None
    return GenerationRequest(
        id="",
        tokens=(),
        max_tokens=0,
        sampling=sampling,
        priority=router_caller.priority,
        stop=params.stop,
        top_logprobs=top_logprobs,
        prompt_logprobs=params.score_prompt,
        scores_end=params.score_end,
        reports_progress=params.details.progress,
        ends_loops=context.options.end_loops and not sampling.ignore_eos,
        client=router_caller.client,
        account=router_caller.account,
        group=router_caller.group,
        route=params.id_prefix.removesuffix("-"),
        cache_namespace=cache_namespace(salt=params.cache_salt, key=key),
        adapter=context.chosen.adapter,
        constraint=output.constraint,
        marks=output.thinking.marks if output.thinking is not None else None,
        # The reader of tool calls needs the control tokens between thoughts, text and calls.
        show_control_tokens=output.tool_calls is not None or output.shows_marks,
    )


def _headers(params: GenerationParams, output: PlannedOutput) -> dict[str, str]:
    ignored = Ignored((*params.ignored.names, *output.ignored)).headers
    if not output.unenforced:
        return ignored
    return {**ignored, UNENFORCED: ",".join(map(header_safe, first_names(output.unenforced)))}


# -- prompts ---------------------------------------------------------------------------------------------


def _prepared(params: GenerationParams, context: ResolveContext) -> tuple[list[Prompt], PlannedOutput]:
    prompt = params.prompt
    if isinstance(prompt, ConversationsParam):
        each = []
        for one in prompt.each:
            texts = [message.text for message in one.messages]
            media = tuple(item for item in params.media if any(item.mark in text for text in texts))
            each.append(_of_conversation(msgspec.structs.replace(params, media=media), one, context))
        return [made for prompts, _ in each for made in prompts], each[0][1]
    if isinstance(prompt, ConversationParam):
        return _of_conversation(params, prompt, context)
    if not (prompt.is_user_message and context.chosen.model.prompts.has_template):
        return _of_texts(params, prompt, context)
    (text,) = prompt.prompts
    items = (text,) if isinstance(text, str) else text
    before = tuple(item for item in items if isinstance(item, int))
    content = "".join(item for item in items if isinstance(item, str))
    message = MessageParam({"role": "user", "content": content})
    return _of_conversation(params, ConversationParam([message], prompt.path, before=before), context)


def _of_texts(
    params: GenerationParams, texts: PromptsParam, context: ResolveContext
) -> tuple[list[Prompt], PlannedOutput]:
    model = context.chosen.model
    most_tokens = context.info.context_limit if params.last_tokens is None else None
    prompts = text_prompts(texts, model.tokenizer, most_tokens)
    return prompts, answer_output(params.form, model.grammars)


def _of_conversation(
    params: GenerationParams, conversation: ConversationParam, context: ResolveContext
) -> tuple[list[Prompt], PlannedOutput]:
    model, info = context.chosen.model, context.info
    if conversation.template:
        return _of_texts(params, _written(params, conversation, model, info.context_limit), context)
    maker = PromptMaker(params, conversation, model, info)
    template, tools = maker.template, maker.tools
    prompt = _behind(conversation.before, maker.prompt(conversation.messages), model.tokenizer)
    if params.last_tokens is None:  # a prompt that is too long is refused before its grammar is made
        output_budget(params, len(prompt.tokens), info, context.options, model.defaults.max_output_tokens)
    if tools is None or tools.use is None:
        output = answer_output(params.form, model.grammars)
    else:
        outputs = ToolOutputs(template.tool_format, model.grammars, model.tokenizer)
        output = outputs.plan(tools, tools.use, params.form)
    if template.thinking is None:
        output = msgspec.structs.replace(output, ignored=params.thinking.paths)
    else:
        thinking = ThinkingOutputs(template.thinking.form, model.tokenizer)
        has_stop = bool(params.stop) and output.takes_stop
        output = thinking.plan(output, maker.thinking, prompt, has_stop=has_stop)
    # Equal words about different pictures, or behind different tokens, are different questions.
    is_whole = not (params.media or conversation.before)
    turn = None
    if context.options.compares_turns and params.cache is not False and is_whole:
        turn = last_turn(conversation.messages, lambda messages: maker.prompt(messages).tokens)
    items = tuple(one.item for one in params.media)
    num_samples = sum(item.size.num_samples for item in items if isinstance(item, Sound))
    made = Prompt(
        prompt.tokens,
        turn=turn,
        boundaries=prompt.boundaries,
        media_items=items,
        media=media_in(prompt.tokens, items, [one.shape for one in params.media]) if items else (),
        sound_s=num_samples / info.sound_rate if num_samples else 0.0,
    )
    return [made], output


def _written(
    params: GenerationParams, conversation: ConversationParam, model: ServedModel, context_limit: int
) -> PromptsParam:
    """Templates of Ollama show neither tools nor media."""
    if params.tools is not None and params.tools.use is not None:
        raise wrong(
            "Templates in Ollama's language do not render tools here: use the model's own.", params.tools.path
        )
    if params.media:
        raise wrong(
            "Templates in Ollama's language do not render media here: use the model's own.", conversation.path
        )
    roles = {"developer": "system"}
    messages = [
        {"role": roles.get(str(one.role), str(one.role)), "content": one.text}
        for one in conversation.messages
    ]
    text = model.write_template(conversation.template, messages, conversation.suffix, context_limit)
    whole: str | Sequence[int | str] = (*conversation.before, text) if conversation.before else text
    return PromptsParam([whole], path=conversation.path)


def _behind(before: tuple[int, ...], prompt: ChatPrompt, tokenizer: Tokenizer) -> ChatPrompt:
    """Continue earlier tokens, which already begin with BOS."""
    if not before:
        return prompt
    check_tokens(before, vocab_size=tokenizer.vocab_size, param="context")
    own = prompt.tokens[1:] if prompt.tokens[:1] == (tokenizer.bos,) else prompt.tokens
    moved = len(before) + len(own) - len(prompt.tokens)
    return msgspec.structs.replace(
        prompt, tokens=(*before, *own), boundaries=tuple(boundary + moved for boundary in prompt.boundaries)
    )


class PromptEnds(msgspec.Struct, frozen=True):
    begins_answer: bool = True
    has_marks: bool | None = None
    """True to begin with BOS, or None to let model and template decide."""


_WHOLE = PromptEnds()


def tokens_of(params: GenerationParams, model: ServedModel, ends: PromptEnds = _WHOLE) -> tuple[int, ...]:
    """Return the prompt's tokens. Raises InvalidRequest, DeadlyInput."""
    assert isinstance(params.prompt, ConversationParam), "prompts of other kinds are not rendered here"
    assert not params.attached, "attachments are resolved earlier"
    if params.prompt.template:
        context_limit = model.engine.info.context_limit if model.engine.info else _MOST_CONTEXT
        (made,) = text_prompts(_written(params, params.prompt, model, context_limit), model.tokenizer, None)
        return made.tokens
    maker = PromptMaker(params, params.prompt, model, model.engine.info, ends)
    return maker.prompt(params.prompt.messages).tokens


@dataclass
class PromptMaker:
    """Renderer of a conversation. Creation raises InvalidRequest."""

    params: GenerationParams
    conversation: ConversationParam
    model: ServedModel
    info: ModelInfo | None
    """Unknown (None) if the model is not loaded."""
    ends: PromptEnds = _WHOLE

    def __post_init__(self) -> None:
        self.tools = usable_tools(self.params.tools)
        has_calls = any(one.fields.get("tool_calls") for one in self.conversation.messages)
        has_tools = self.tools is not None or has_calls
        self.template = self.model.template(self.params.template, has_tools=has_tools)
        self.thinking = thinking_plan(self.params.thinking, self.template.thinking)

    def prompt(self, messages: Sequence[MessageParam]) -> ChatPrompt:
        try:
            return self._rendered(messages, self.thinking.variables)
        except TemplateFailed as error:
            is_by_variables = self.params.thinking.variables and self._renders_without_variables(messages)
            path = "chat_template_kwargs" if is_by_variables else self.conversation.path
            raise InvalidRequest(str(error), param=path, code="chat_template_failed") from error
        except InvalidRequest as error:
            if error.param is not None:
                raise
            raise InvalidRequest(str(error), param=self.conversation.path, code=error.code) from None

    def _renders_without_variables(self, messages: Sequence[MessageParam]) -> bool:
        variables, sent = self.thinking.variables, self.params.thinking.variables
        try:
            self._rendered(messages, {name: value for name, value in variables.items() if name not in sent})
        except TemplateFailed:
            return False
        return True

    def _rendered(self, messages: Sequence[MessageParam], variables: Mapping[str, object]) -> ChatPrompt:
        info = self.info
        is_cut = self.params.last_tokens is not None
        return self.model.prompts.prompt(
            Conversation(
                messages=[message.fields for message in messages],
                tools=self.tools.shown if self.tools else (),
                template=self.template.name,
                written={} if info is None else _earlier_answers(messages, info),
                variables=variables,
                skips_thinking=self.thinking.skips_thinking,
                most_tokens=None if info is None or is_cut else info.context_limit,
                begins_answer=self.ends.begins_answer,
                has_marks=self.ends.has_marks,
                shown={one.mark: shown_tokens(one.item, one.shape) for one in self.params.media},
                # Without a state a sequence begins anywhere: to look for boundaries would be in vain.
                finds_boundaries=info is None or info.state_bytes > 0,
            )
        )


def _earlier_answers(messages: Sequence[MessageParam], info: ModelInfo) -> Written:
    """Return this very model's answers. Adapters change none of its tokens."""
    vocabulary = fingerprint(info) if any(message.own for message in messages) else ""
    return {
        index: message.own.tokens
        for index, message in enumerate(messages)
        if message.own is not None and message.own.tokens and message.own.vocabulary == vocabulary
    }


# -- prompts that are too long -----------------------------------------------------------------------------


def _cut(
    prompts: Sequence[Prompt], params: GenerationParams, last_tokens: int, context: ResolveContext
) -> list[Prompt]:
    if params.media:
        message = "'truncate_prompt_tokens' is not supported with pictures and sounds."
        raise InvalidRequest(message, param="truncate_prompt_tokens", code="unsupported_parameter")
    num_left = _prompt_room(params, context) if last_tokens < 0 else last_tokens
    tokenizer = context.chosen.model.tokenizer
    begin = (tokenizer.bos,) if tokenizer.adds_bos and tokenizer.bos is not None else ()
    return [_last(prompt, num_left, begin) for prompt in prompts]


def _last(prompt: Prompt, num_left: int, begin: tuple[int, ...]) -> Prompt:
    num_removed = len(prompt.tokens) - num_left
    if num_removed <= 0:
        return prompt
    head = begin if prompt.tokens[: len(begin)] == begin and num_left > len(begin) else ()
    num_removed += len(head)
    boundaries = tuple(
        boundary - num_removed + len(head) for boundary in prompt.boundaries if boundary > num_removed
    )
    tokens = (*head, *prompt.tokens[num_removed:])
    return msgspec.structs.replace(prompt, tokens=tokens, boundaries=boundaries, turn=None)


def _shorter(params: GenerationParams, context: ResolveContext) -> GenerationParams | None:
    conversation = params.prompt
    if not (isinstance(conversation, ConversationParam) and conversation.may_forget):
        return None
    limit = _prompt_room(params, context)

    def with_only(messages: Sequence[MessageParam]) -> GenerationParams:
        prompt = msgspec.structs.replace(conversation, messages=messages)
        return msgspec.structs.replace(params, prompt=prompt)

    def fits(messages: Sequence[MessageParam]) -> bool:
        try:
            return len(tokens_of(with_only(messages), context.chosen.model)) <= limit
        except InvalidRequest as error:
            if error.code == _TOO_LONG:
                return False
            raise

    messages = shortened(conversation, fits)
    return None if messages is None else with_only(messages)


def _prompt_room(params: GenerationParams, context: ResolveContext) -> int:
    limit = context.info.context_limit
    wanted = params.max_tokens
    answer_room = min(_ANSWER_ROOM, limit // 4) if wanted is None or wanted.is_unlimited else wanted.tokens
    return max(1, min(limit - answer_room, context.options.max_prompt_tokens or limit))


_STRIDE = 8
"""Exchanges dropped at a time, so that next turns share a prefix."""


def shortened(
    conversation: ConversationParam, fits: Callable[[Sequence[MessageParam]], bool]
) -> Sequence[MessageParam] | None:
    """Drop the oldest exchanges until the rest fits, or return None. The last question and step stay."""
    messages = list(conversation.messages)
    head = [*takewhile(lambda one: one.role in ("system", "developer"), messages)]
    exchanges = _split(messages[len(head) :], "user")
    last = _split(exchanges[-1], "assistant") if exchanges else []
    strides = range(_STRIDE, len(exchanges) - _STRIDE, _STRIDE)
    single = range(max(strides.stop if strides else 1, 1), len(exchanges))
    ways = [[*head, *chain(*exchanges[count:])] for count in sorted({*strides, *single})]
    ways += [[*head, *last[0], *chain(*last[count:])] for count in range(2, len(last))]
    place = bisect_left(ways, True, key=fits)
    return ways[place] if place < len(ways) else None


def _split(messages: Sequence[MessageParam], role: str) -> list[list[MessageParam]]:
    parts: list[list[MessageParam]] = []
    for one in messages:
        if one.role == role or not parts:
            parts.append([])
        parts[-1].append(one)
    return parts


_BLANK = "..."
"""Placeholder, because templates may treat an empty turn differently."""


def last_turn(
    messages: Sequence[MessageParam], tokens: Callable[[Sequence[MessageParam]], tuple[int, ...]]
) -> LastTurn | None:
    """Return the last user turn. Raises the errors of `tokens`."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if not users:
        return None
    last = users[-1]
    blank = MessageParam({**messages[last].fields, "content": _BLANK})
    return LastTurn(messages[last].text, tokens([*messages[:last], blank, *messages[last + 1 :]]))


# -- prompts of texts --------------------------------------------------------------------------------------

_Text = Union[str, Sequence[Union[int, str]]]


def text_prompts(texts: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None) -> list[Prompt]:
    """Skip tokenizing texts surely above `most_tokens`. Raises InvalidRequest."""
    fills = texts.suffix or texts.files is not None or tokenizer.fim is not None
    if texts.suffix is None or not fills:
        return [_plain(prompt, tokenizer, most_tokens, echo=texts.echo) for prompt in texts.prompts]
    if texts.echo and texts.files is None:
        raise wrong("'echo' and 'suffix' cannot be combined.", "suffix")
    return [_fill_in(prompt, texts.suffix, texts, tokenizer, most_tokens) for prompt in texts.prompts]


def _plain(prompt: _Text, tokenizer: Tokenizer, most_tokens: int | None, *, echo: bool) -> Prompt:
    tokens = _tokens(prompt, tokenizer, most_tokens, add_special=True)
    if not tokens:
        message = "Invalid value for 'prompt': it is empty, and this model has no token to begin with."
        raise wrong(message, "prompt")
    return Prompt(tokens, _text(prompt, tokenizer) if echo else None)


def _fill_in(
    prefix: _Text, suffix: str, texts: PromptsParam, tokenizer: Tokenizer, most_tokens: int | None
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
"""llama-server's texts, like the two above, so that a model fills in the same."""


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
    prompt: _Text, tokenizer: Tokenizer, most_tokens: int | None, *, add_special: bool
) -> tuple[int, ...]:
    tokens = whole_prompt(prompt, tokenizer, add_special=add_special, most_tokens=most_tokens)
    return check_tokens(tokens, vocab_size=tokenizer.vocab_size, param="prompt")


def _text(prompt: _Text, tokenizer: Tokenizer) -> str:
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
