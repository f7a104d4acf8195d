"""Path of each generating call, which knows neither bytes nor HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.api.generation.answer_lookup import AnswerLookup
from openai_cpu_server.api.generation.attachments import AttachmentFinder
from openai_cpu_server.api.generation.call import ResolveContext, ResolvedRequest
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    ConversationsParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.resolve import resolve, router_caller_of, tokens_of
from openai_cpu_server.api.generation.resumable_streams import ResumableStreams
from openai_cpu_server.api.generation.running import (
    CachedAnswer,
    GrammarRefusals,
    ReplayedGeneration,
    RunningCall,
    RunningCalls,
    TimedEvent,
    limit_time,
)
from openai_cpu_server.api.generation.sampling import with_defaults
from openai_cpu_server.contract.messages import Finish
from openai_cpu_server.http.body import in_thread
from openai_cpu_server.http.context import Caller, RequestContext
from openai_cpu_server.http.keys import Client, Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, header_safe
from openai_cpu_server.models.registry import (
    Ability,
    ChosenModel,
    ModelRegistry,
    Preset,
    choose_able,
    ensure_served,
)
from openai_cpu_server.models.routing import decide
from openai_cpu_server.models.routing.follow import RoutedCall, follow
from openai_cpu_server.models.routing.options import Cascade
from openai_cpu_server.observe.ended import RouteTaken

ROUTED_MODEL = "x-routed-model"
ROUTED_WHY = "x-routed-why"


def router_input(params: GenerationParams, caller: Caller) -> decide.RouterInput:
    identity = caller.identity
    # The holder of a key goes before all else; without one it is the key, else the address.
    holder = Client.of(identity, None).label
    # Users of one key with a name are several, for a router.
    nameless = Identity(None, identity.digest, identity.address)
    prompt, num_token_ids, limit = params.prompt, 0, params.max_tokens
    if isinstance(prompt, PromptsParam):
        texts = tuple(text for text in prompt.prompts if isinstance(text, str))
        request = texts[-1] if texts else ""
        num_token_ids = sum(len(tokens) for tokens in prompt.prompts if not isinstance(tokens, str))
    else:
        each = prompt.each if isinstance(prompt, ConversationsParam) else (prompt,)
        messages = [message for conversation in each for message in conversation.messages]
        texts = tuple(message.text for message in messages)
        request = next((one.text for one in reversed(messages) if one.role == "user"), texts[-1])
    return decide.RouterInput(
        texts=texts,
        request=request,
        num_token_ids=num_token_ids,
        max_tokens=None if limit is None or limit.is_unlimited else limit.tokens,
        has_tools=params.tools is not None,
        has_schema=params.form is not None,
        stream=params.stream,
        user=Client.of(nameless, params.user).label if params.user else holder,
        key=holder,
    )


HoldEvents = Callable[[], Awaitable[list[TimedEvent]]]


class CascadeAttempt(NamedTuple):
    """Hooks for the small model's answer, which is held until it is judged."""

    disconnect_guard: Callable[[HoldEvents], Awaitable[list[TimedEvent]]] = lambda hold: hold()
    submitted: Callable[[RunningCall], None] = lambda running: None


WITHOUT_GUARD = CascadeAttempt()


def judged(call: ResolvedRequest, events: Sequence[TimedEvent]) -> list[decide.JudgedAnswer]:
    logprobs: dict[str, list[float]] = {request.id: [] for request in call.requests}
    finishes: dict[str, Finish] = {}
    for event, _ in events:
        logprobs[event.id] += [entry.logprob for entry in event.logprobs]
        if event.finish is not None:
            finishes[event.id] = event.finish
    return [
        decide.JudgedAnswer(
            logprobs=tuple(logprobs[request.id][finishes[request.id].thought_tokens :]),
            finish=finishes[request.id].reason,
            has_form=request.constraint is not None and request.constraint.grammar is not None,
        )
        for request in call.requests
    ]


class RequestedModel(NamedTuple):
    chosen: ChosenModel
    routed: RoutedCall | None = None


@dataclass(frozen=True)
class GenerationService:
    models: ModelRegistry
    options: ApiOptions
    attachments: AttachmentFinder
    streams: ResumableStreams
    answer_lookup: AnswerLookup | None = None
    calls: RunningCalls = field(default_factory=RunningCalls)
    refusals: GrammarRefusals = field(default_factory=GrammarRefusals)

    async def prompt_tokens(
        self, params: GenerationParams, chosen: ChosenModel, context: RequestContext
    ) -> tuple[int, Ignored]:
        """Count the prompt's tokens. Raises InvalidRequest, EngineUnavailable."""
        params, model = _with_defaults(params, chosen), chosen.model
        params = await self.attachments.resolve(params, model, context.owner)
        tokens = await in_thread(partial(tokens_of, params, model), is_slow=params.is_slow)
        return len(tokens), params.ignored

    async def begin(
        self, params: GenerationParams, context: RequestContext, attempt: CascadeAttempt = WITHOUT_GUARD
    ) -> RunningCall:
        """Submit a call, which the caller must enter. Raises errors of requests, models and limits."""
        return await _GenerationPipeline(self, params, context).run(attempt)


_PRESET_PATH = "model"


def _with_defaults(params: GenerationParams, chosen: ChosenModel) -> GenerationParams:
    preset = chosen.preset or Preset(base=chosen.name)
    limit = LimitParam.ceiling(preset.max_tokens, _PRESET_PATH) if preset.max_tokens else None
    return msgspec.structs.replace(
        params,
        sampling=with_defaults(params.sampling, chosen.model.defaults, preset.parameters),
        max_tokens=params.max_tokens or limit,
        stop=params.stop or preset.stop,
        prompt=_with_turns(params.prompt, preset),
    )


def _with_turns(
    prompt: ConversationParam | ConversationsParam | PromptsParam, preset: Preset
) -> ConversationParam | ConversationsParam | PromptsParam:
    """Leave a text to be continued, which has no turns."""
    if isinstance(prompt, ConversationsParam):
        return msgspec.structs.replace(prompt, each=tuple(_led(one, preset) for one in prompt.each))
    if isinstance(prompt, ConversationParam):
        return _led(prompt, preset)
    text = prompt.prompts[0] if prompt.is_user_message and len(prompt.prompts) == 1 else None
    if not isinstance(text, str) or not (preset.system or preset.messages or preset.template):
        return prompt
    return _led(ConversationParam([MessageParam({"role": "user", "content": text})], prompt.path), preset)


def _led(prompt: ConversationParam, preset: Preset) -> ConversationParam:
    messages = list(prompt.messages)
    leading = [
        MessageParam({"role": one.role, "content": one.content}, path=_PRESET_PATH) for one in preset.messages
    ]
    has_system = any(message.role in ("system", "developer") for message in (*messages[:1], *leading))
    if preset.system and not has_system:
        leading.insert(0, MessageParam({"role": "system", "content": preset.system}, path=_PRESET_PATH))
    at = 1 if messages and leading and messages[0].role in ("system", "developer") else 0
    messages[at:at] = leading
    return msgspec.structs.replace(prompt, messages=messages, template=prompt.template or preset.template)


@dataclass(frozen=True)
class _GenerationPipeline:
    service: GenerationService
    params: GenerationParams
    context: RequestContext

    async def run(self, attempt: CascadeAttempt) -> RunningCall:
        target = await self._target()
        routed = target.routed
        if routed is None or routed.cascade is None:
            return await self._submitted(target)
        first = await self._attempted(target, routed, routed.cascade, attempt)
        if isinstance(first, RunningCall):
            return first
        await self.context.reservation.refund()
        larger = routed.after(first, choose_able(self.service.models, routed.larger, None, Ability.GENERATE))
        self._note_route(larger)
        return await self._submitted(RequestedModel(larger.chosen, larger))

    async def _target(self) -> RequestedModel:
        params, models, caller = self.params, self.service.models, self.context.caller
        allowed = self.context.identity.allowed_models
        await ensure_served(models, params.model, allowed)
        router = models.router(params.model, allowed)
        if router is None:
            ability = Ability.GENERATE if params.recording is None else Ability.HEAR
            return RequestedModel(choose_able(models, params.model, allowed, ability, adapter=params.lora))
        if params.lora is not None:
            message = (
                f"'{router.name}' routes to several models, whose adapters differ; "
                "name one of the models in 'model'."
            )
            raise errors.InvalidRequest(message, param="lora", code="unsupported_value")
        question, router_caller = router_input(params, caller), router_caller_of(params, caller)
        routed = await follow(models, router, question, router_caller, params.model or router.name)
        if routed.cascade is None:  # else it is known when the small model's answer has been judged
            self._note_route(routed)
        return RequestedModel(routed.chosen, routed)

    def _note_route(self, routed: RoutedCall) -> None:
        route = RouteTaken(router=routed.router, model=routed.chosen.name, reason=routed.reason.value)
        self.context.request_log.sent_to(route)

    async def _submitted(self, target: RequestedModel) -> RunningCall:
        cached = await self._with_cached_answer(await self._resolved(target), target.chosen)
        running = await self._running(cached, target.chosen)
        if running is None:  # the model was replaced meanwhile, maybe by one with other tokens
            model = self.service.models.choose(target.chosen.model.name, None).model
            return await self._submitted(target._replace(chosen=target.chosen._replace(model=model)))
        return running

    async def _resolved(self, target: RequestedModel) -> ResolvedRequest:
        chosen, routed = target
        model = chosen.model
        context = ResolveContext(chosen, model.loaded(), self.context.caller, self.service.options)
        params = _with_defaults(self.params, chosen)
        if params.attached or params.recording is not None:
            params = await self.service.attachments.resolve(params, model, self.context.owner)
        call = await in_thread(partial(resolve, params, context), is_slow=params.is_slow)
        return call if routed is None else _routed(msgspec.structs.replace(call, model=routed.router), routed)

    async def _with_cached_answer(self, call: ResolvedRequest, chosen: ChosenModel) -> CachedAnswer:
        """Answer before token limits and queues apply."""
        self.context.request_log.priority = call.priority
        if self.service.answer_lookup is None:
            return CachedAnswer(call)
        return await self.service.answer_lookup.find(call, chosen, self.context)

    async def _running(self, cached: CachedAnswer, chosen: ChosenModel) -> RunningCall | None:
        """Return None if the model was replaced meanwhile."""
        call, model, context = cached.call, chosen.model, self.context
        calls, refusals = self.service.calls, self.service.refusals
        running = partial(
            RunningCall, call, model=model, request_log=context.request_log, calls=calls, refusals=refusals
        )
        if cached.held is not None:
            return running(generation=cached.held)
        refusals.check(call, model.name)
        await context.reservation.reserve(
            prompt_tokens=call.prompt_tokens, output_tokens=call.max_output_tokens
        )
        try:
            generation = model.engine.generate(call.requests)
        except errors.ServerError:
            await context.reservation.refund()
            if not self.service.models.is_current(model):
                return None
            raise
        limit_time(generation, context.request_log, call.timeout_s, context.timeout_s)
        return running(generation=generation, reservation=context.reservation, recorder=cached.recorder)

    async def _attempted(
        self, target: RequestedModel, routed: RoutedCall, cascade: Cascade, attempt: CascadeAttempt
    ) -> RunningCall | decide.RouteDecision:
        try:
            call = await self._resolved(target)
            scored = (
                msgspec.structs.replace(one, top_logprobs=one.top_logprobs or 0) for one in call.requests
            )
            call = msgspec.structs.replace(call, requests=tuple(scored))
            cached = await self._with_cached_answer(call, target.chosen)
            first = await self._running(cached, target.chosen)
            if first is None:
                raise errors.EngineUnavailable("The model is being replaced.")
            attempt.submitted(first)
            async with first:
                events = await attempt.disconnect_guard(first.hold)
        except errors.PromptTooLong as error:
            return decide.RouteDecision(cascade.large, decide.RouteReason.TOO_LONG, str(error))
        except (
            errors.EngineUnavailable,
            errors.ModelTooLarge,
            errors.QueueFull,
            errors.GenerationFailed,
            errors.ConstraintFailed,
        ) as error:
            return decide.RouteDecision(cascade.large, decide.RouteReason.FAILED, str(error))
        decision = decide.verdict(cascade, judged(call, events))
        if decision.reason is not decide.RouteReason.SURE:
            return decision
        sure = routed.after(decision, target.chosen)
        self._note_route(sure)
        held = ReplayedGeneration(events, first.figures)
        return replace(first, call=_routed(first.call, sure), generation=held, recorder=None)


def _routed(call: ResolvedRequest, routed: RoutedCall) -> ResolvedRequest:
    headers = {ROUTED_MODEL: header_safe(routed.chosen.name), ROUTED_WHY: header_safe(routed.why)}
    return msgspec.structs.replace(call, headers={**call.headers, **headers})
