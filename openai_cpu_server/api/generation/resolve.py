"""Resolution of a `GenerationParams` into a `ResolvedRequest` with its requests, for one model. Pure, runs
in any thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.generation.call import (
    AnswerReuse,
    Prompt,
    ResolveContext,
    ResolvedRequest,
    fingerprint,
)
from openai_cpu_server.api.generation.output import (
    AnswerForm,
    PlannedOutput,
    ToolOutputs,
    ToolPlan,
    check_ends,
    of_answer,
    tool_plan,
)
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    ConversationsParam,
    GenerationParams,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.prompts import (
    WHOLE,
    PromptEnds,
    PromptMaker,
    last_turn,
    shortened,
    text_prompts,
)
from openai_cpu_server.api.generation.sampling import (
    NumChoices,
    OutputRoom,
    check_tokens,
    choices_of,
    for_choice,
    for_model,
    output_room,
)
from openai_cpu_server.api.generation.thinking import ThinkingOutputs
from openai_cpu_server.contract.media import Sound, media_in
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, wrong
from openai_cpu_server.http.clients import Client, account_of
from openai_cpu_server.http.ignored_params import TIERS
from openai_cpu_server.http.parse import Ignored, header_safe
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import ChatPrompt
from openai_cpu_server.prompt.tool_formats import ToolFormat

UNENFORCED = "x-unenforced-schema-keywords"
_MOST_NAMED = 32
_ROOM = 1024
"""Tokens to leave for an answer without a limit if the prompt may be shortened."""
_MOST_CONTEXT = 2**20
_TOO_LONG = "context_length_exceeded"


class PreparedPrompts(NamedTuple):
    prompts: Sequence[Prompt]
    output: PlannedOutput
    left_out: tuple[str, ...] = ()


def resolve(ask: GenerationParams, asking: ResolveContext) -> ResolvedRequest:
    """Resolve a request, with fewer messages if it is too long. Raises InvalidRequest, PromptTooLong,
    DeadlyInput."""
    assert not ask.attached, "what is attached is found before"
    assert ask.recording is None, "likewise"
    try:
        return _resolved(ask, asking)
    except (InvalidRequest, PromptTooLong) as error:
        # Only where it is too long could fewer messages help.
        is_too_long = isinstance(error, PromptTooLong) or error.code == _TOO_LONG
        shorter = _shorter(ask, asking) if is_too_long else None
        if shorter is None:
            raise
    return _resolved(shorter, asking)


def tokens_of(ask: GenerationParams, model: ServedModel, ends: PromptEnds = WHOLE) -> tuple[int, ...]:
    """Return the prompt's tokens. Raises InvalidRequest, DeadlyInput."""
    assert isinstance(ask.prompt, ConversationParam), "nobody asks for other prompts"
    assert not ask.attached, "what is attached is found before"
    if ask.prompt.template:
        context_limit = model.engine.info.context_limit if model.engine.info else _MOST_CONTEXT
        (made,) = text_prompts(_written(ask, ask.prompt, model, context_limit), model.tokenizer, None)
        return made.tokens
    maker = PromptMaker(ask, ask.prompt.path, tool_plan(ask.tools), model, model.engine.info, ends)
    return maker.prompt(ask.prompt.messages).tokens


def served_tier(asked: str, priority: Priority) -> str:
    """Return the tier that applies. A key's best priority, or the header, may have lowered it."""
    is_lowered = priority is Priority.BATCH and asked in ("priority", "fast")
    return "flex" if is_lowered else asked


def _resolved(ask: GenerationParams, asking: ResolveContext) -> ResolvedRequest:
    choices = choices_of(ask, asking.options)
    prepared = _cut(_prepared(ask, asking), ask, asking)
    check_ends(ask, prepared.output)
    return _call(ask, asking, prepared, choices)


# -- prompts ---------------------------------------------------------------------------------------------


def _prepared(ask: GenerationParams, asking: ResolveContext) -> PreparedPrompts:
    prompt, model = ask.prompt, asking.chosen.model
    if isinstance(prompt, ConversationParam):
        return _of_conversation(ask, prompt, asking)
    if isinstance(prompt, ConversationsParam):
        each = [_of_conversation(_with_media_of(ask, one), one, asking) for one in prompt.each]
        prompts = [made for prepared in each for made in prepared.prompts]
        return PreparedPrompts(prompts, each[0].output, each[0].left_out)
    if prompt.is_said and model.prompts.has_template:
        return _of_conversation(ask, _said(prompt), asking)
    return _of_texts(ask, prompt, asking)


def _of_texts(ask: GenerationParams, texts: PromptsParam, asking: ResolveContext) -> PreparedPrompts:
    model = asking.chosen.model
    most_tokens = asking.info.context_limit if ask.last_tokens is None else None
    prompts = text_prompts(texts, model.tokenizer, most_tokens)
    return PreparedPrompts(prompts, of_answer(AnswerForm.of(ask.form, model.grammars)))


def _written(
    ask: GenerationParams, conversation: ConversationParam, model: ServedModel, context_limit: int
) -> PromptsParam:
    """Write the prompt with a template of Ollama, which shows neither tools nor media."""
    if ask.tools is not None and ask.tools.use is not None:
        raise wrong("A template of Ollama's shows no tools here: use the model's own.", ask.tools.path)
    if ask.media:
        raise wrong("A template of Ollama's shows no media here: use the model's own.", conversation.path)
    roles = {"developer": "system"}
    said = [
        {"role": roles.get(str(one.role), str(one.role)), "content": one.text}
        for one in conversation.messages
    ]
    text = model.write_template(conversation.template, said, conversation.suffix, context_limit)
    whole: str | Sequence[int | str] = (*conversation.before, text) if conversation.before else text
    return PromptsParam([whole], path=conversation.path)


def _said(prompt: PromptsParam) -> ConversationParam:
    (text,) = prompt.prompts
    items = (text,) if isinstance(text, str) else text
    before = tuple(item for item in items if isinstance(item, int))
    content = "".join(item for item in items if isinstance(item, str))
    return ConversationParam([MessageParam({"role": "user", "content": content})], prompt.path, before=before)


def _cut(prepared: PreparedPrompts, ask: GenerationParams, asking: ResolveContext) -> PreparedPrompts:
    if ask.last_tokens is None:
        return prepared
    if ask.media:
        message = "'truncate_prompt_tokens' is not possible with pictures and sounds."
        raise InvalidRequest(message, param="truncate_prompt_tokens", code="unsupported_parameter")
    kept = _room(ask, asking) if ask.last_tokens < 0 else ask.last_tokens
    tokenizer = asking.chosen.model.tokenizer
    begin = (tokenizer.bos,) if tokenizer.adds_bos and tokenizer.bos is not None else ()
    return prepared._replace(prompts=[_last(prompt, kept, begin) for prompt in prepared.prompts])


def _last(prompt: Prompt, kept: int, begin: tuple[int, ...]) -> Prompt:
    removed = len(prompt.tokens) - kept
    if removed <= 0:
        return prompt
    head = begin if prompt.tokens[: len(begin)] == begin and kept > len(begin) else ()
    removed += len(head)
    borders = tuple(border - removed + len(head) for border in prompt.borders if border > removed)
    return msgspec.structs.replace(
        prompt, tokens=(*head, *prompt.tokens[removed:]), borders=borders, turn=None
    )


def _with_media_of(ask: GenerationParams, conversation: ConversationParam) -> GenerationParams:
    texts = [message.text for message in conversation.messages]
    media = tuple(one for one in ask.media if any(one.mark in text for text in texts))
    return msgspec.structs.replace(ask, media=media)


def _of_conversation(
    ask: GenerationParams, conversation: ConversationParam, asking: ResolveContext
) -> PreparedPrompts:
    if conversation.template:
        written = _written(ask, conversation, asking.chosen.model, asking.info.context_limit)
        return _of_texts(ask, written, asking)
    model, plan = asking.chosen.model, tool_plan(ask.tools)
    maker = PromptMaker(ask, conversation.path, plan, model, asking.info)
    template = maker.template
    output = _output(ask, plan, model, template.tool_format)
    prompt = _behind(conversation.before, maker.prompt(conversation.messages), model.tokenizer)
    left_out: tuple[str, ...] = ()
    if template.thinking is None:
        left_out = ask.thinking.said
    else:
        outputs = ThinkingOutputs(template.thinking.form, model.tokenizer)
        output = outputs.of(output, maker.thinking, prompt, has_stop=bool(ask.stop))
    # What is asked about a picture, or behind tokens, is not alike because the words are.
    is_whole = not (ask.media or conversation.before)
    compares = asking.options.compares_turns and ask.cache is not False and is_whole
    turn = last_turn(conversation.messages, lambda told: maker.prompt(told).tokens) if compares else None
    items = tuple(one.item for one in ask.media)
    media = media_in(prompt.tokens, items, [one.shape for one in ask.media]) if items else ()
    samples = sum(item.size.num_samples for item in items if isinstance(item, Sound))
    made = Prompt(
        prompt.tokens,
        turn=turn,
        borders=prompt.borders,
        media_items=items,
        media=media,
        sound_s=samples / asking.info.sound_rate if samples else 0.0,
    )
    return PreparedPrompts([made], output, left_out)


def _behind(before: tuple[int, ...], prompt: ChatPrompt, tokenizer: Tokenizer) -> ChatPrompt:
    """Continue earlier tokens, which already begin with BOS."""
    if not before:
        return prompt
    check_tokens(before, vocab_size=tokenizer.vocab_size, param="context")
    own = prompt.tokens[1:] if prompt.tokens[:1] == (tokenizer.bos,) else prompt.tokens
    moved = len(before) + len(own) - len(prompt.tokens)
    return msgspec.structs.replace(
        prompt, tokens=(*before, *own), borders=tuple(border + moved for border in prompt.borders)
    )


def _output(
    ask: GenerationParams, plan: ToolPlan | None, model: ServedModel, form: ToolFormat
) -> PlannedOutput:
    answer = AnswerForm.of(ask.form, model.grammars)
    if plan is None or plan.use is None:
        return of_answer(answer)
    return ToolOutputs(form, model.grammars, model.tokenizer).of_plan(plan, answer)


def _shorter(ask: GenerationParams, asking: ResolveContext) -> GenerationParams | None:
    conversation = ask.prompt
    if not (isinstance(conversation, ConversationParam) and conversation.may_forget):
        return None
    limit = _room(ask, asking)

    def fits(messages: Sequence[MessageParam]) -> bool:
        try:
            return len(tokens_of(_with(ask, messages), asking.chosen.model)) <= limit
        except InvalidRequest as error:
            if error.code == _TOO_LONG:
                return False
            raise

    kept = shortened(conversation, fits)
    return None if kept is None else _with(ask, kept)


def _room(ask: GenerationParams, asking: ResolveContext) -> int:
    context = asking.info.context_limit
    room = ask.max_tokens.tokens if ask.max_tokens else min(_ROOM, context // 4)
    return max(1, min(context - room, asking.options.max_prompt_tokens or context))


def _with(ask: GenerationParams, messages: Sequence[MessageParam]) -> GenerationParams:
    return msgspec.structs.replace(ask, prompt=msgspec.structs.replace(ask.prompt, messages=messages))


# -- the call --------------------------------------------------------------------------------------------


def _call(
    ask: GenerationParams, asking: ResolveContext, prepared: PreparedPrompts, choices: NumChoices
) -> ResolvedRequest:
    call_id = ask.call_id or ask.id_prefix + secrets.token_hex(12)
    prompts, output = prepared.prompts, prepared.output
    ask = _with_progress(ask, asking)
    alike = _request(ask, asking, output, choices)
    rooms = [output_room(ask, len(prompt.tokens), asking.info, asking.options) for prompt in prompts]
    asked_tokens = _asked_tokens(ask, rooms, choices.made)
    context_ends_it = any(room.context_ends_it for room in rooms)
    is_repeatable = alike.sampling.temperature == 0 or ask.is_seeded
    reuse = AnswerReuse(is_repeatable, asked_tokens=0 if context_ends_it else asked_tokens)
    return ResolvedRequest(
        id=call_id,
        model=asking.chosen.name,
        created=int(time.time()),
        fingerprint=fingerprint(asking.info, asking.chosen.adapter_key),
        prompts=tuple(prompts),
        requests=_requests(alike, call_id, list(zip(prompts, rooms, strict=True)), choices.made),
        n=choices.shown,
        best_of=choices.made,
        priority=alike.priority,
        stream=ask.stream,
        include_usage=ask.include_usage,
        timeout_s=ask.timeout_s,
        max_output_tokens=asked_tokens,
        context_ends_it=context_ends_it,
        service_tier=_tier(ask.service_tier, alike.priority),
        metadata=ask.metadata,
        shown_logprobs=ask.logprobs,
        tool_calls=output.tool_calls,
        thinking=output.thinking,
        reuse=None if ask.cache is False else reuse,
        details=ask.details,
        headers=_headers(ask, prepared),
    )


def _with_progress(ask: GenerationParams, asking: ResolveContext) -> GenerationParams:
    is_wanted = asking.sender.wants_progress() or ask.details.progress
    details = msgspec.structs.replace(ask.details, progress=ask.stream and is_wanted)
    return msgspec.structs.replace(ask, details=details)


def _asked_tokens(ask: GenerationParams, rooms: Sequence[OutputRoom], choices: int) -> int:
    if ask.max_tokens is None or ask.max_tokens.is_ours:
        return 0
    if ask.max_tokens.is_ceiling:
        return choices * sum(room.tokens for room in rooms)
    return choices * len(rooms) * ask.max_tokens.tokens


def _tier(asked: str | None, priority: Priority) -> str | None:
    if asked is None:
        return None
    return served_tier(asked if asked in TIERS else "default", priority)


def _request(
    ask: GenerationParams, asking: ResolveContext, output: PlannedOutput, choices: NumChoices
) -> GenerationRequest:
    identity = asking.sender.identity
    key = identity.digest if asking.options.isolate_by_key else None
    # To choose the best, log-probabilities are needed, whether they are shown or not.
    is_ranked = choices.made > choices.shown and ask.logprobs is None
    return GenerationRequest(
        id="",
        tokens=(),
        max_tokens=0,
        sampling=for_model(ask, asking.chosen.model.tokenizer, vocab_size=asking.info.vocab_size),
        priority=asking.sender.priority(field=ask.priority, tier=ask.service_tier),
        stop=ask.stop,
        top_logprobs=0 if is_ranked else ask.logprobs,
        prompt_logprobs=ask.score_prompt,
        scores_end=ask.score_end,
        tells_progress=ask.details.progress,
        client=Client.of(identity, ask.user).label,
        account=account_of(identity),
        group=Client.group_of(identity),
        route=ask.id_prefix.removesuffix("-"),
        cache_namespace=cache_namespace(salt=ask.cache_salt, key=key),
        adapter=asking.chosen.adapter,
        constraint=output.constraint,
        marks=output.thinking.marks if output.thinking is not None else None,
        # What the model writes between thoughts, text and tool calls is for the reader of its output to see.
        show_control_tokens=output.tool_calls is not None or output.shows_marks,
    )


def _requests(
    alike: GenerationRequest, call_id: str, prompts: Sequence[tuple[Prompt, OutputRoom]], choices: int
) -> tuple[GenerationRequest, ...]:
    return tuple(
        msgspec.structs.replace(
            alike,
            id=f"{call_id}/{index * choices + choice}",
            tokens=prompt.tokens,
            borders=prompt.borders,
            media_items=prompt.media_items,
            media=prompt.media,
            max_tokens=room.tokens,
            sampling=for_choice(alike.sampling, choice),
        )
        for index, (prompt, room) in enumerate(prompts)
        for choice in range(choices)
    )


def _headers(ask: GenerationParams, prepared: PreparedPrompts) -> dict[str, str]:
    ignored = Ignored((*ask.ignored.names, *prepared.left_out)).headers
    unenforced = prepared.output.unenforced
    if not unenforced:
        return ignored
    more = ["..."] if len(unenforced) > _MOST_NAMED else []
    names = [header_safe(path) for path in unenforced[:_MOST_NAMED]]
    return {**ignored, UNENFORCED: ",".join(names + more)}
