"""Path of each generating call: choose the model, resolve, submit. Knows neither bytes nor HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.generation.answer_lookup import AnswerLookup, CachedAnswer
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
from openai_cpu_server.api.generation.resolve import resolve, tokens_of
from openai_cpu_server.api.generation.resumable_streams import ResumableStreams
from openai_cpu_server.api.generation.running import (
    ReplayedGeneration,
    RunningCall,
    RunningCalls,
    TimedEvent,
    limit_time,
)
from openai_cpu_server.contract.engine import Generation
from openai_cpu_server.contract.messages import Finish
from openai_cpu_server.errors import (
    ConstraintFailed,
    EngineUnavailable,
    GenerationFailed,
    InvalidRequest,
    ModelTooLarge,
    PromptTooLong,
    QueueFull,
    ServerError,
)
from openai_cpu_server.http.body import in_thread
from openai_cpu_server.http.clients import Client, account_of
from openai_cpu_server.http.context import Caller, RequestContext
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, header_safe
from openai_cpu_server.models.registry import Ability, ChosenModel, ModelRegistry, Preset, choose_able, fetch
from openai_cpu_server.models.routing.decide import (
    JudgedAnswer,
    RouteDecision,
    RouteReason,
    RouterInput,
    verdict,
)
from openai_cpu_server.models.routing.follow import RoutedCall, follow
from openai_cpu_server.models.routing.options import Cascade
from openai_cpu_server.models.routing.router import RouterCaller
from openai_cpu_server.observe.ended import RouteTaken

ROUTED_MODEL = "x-routed-model"
ROUTED_WHY = "x-routed-why"


def asked_of(ask: GenerationParams, sender: Caller) -> RouterInput:
    texts, request, given_tokens = _prompt(ask)
    identity = sender.identity
    # The holder of a key goes before all else; without one it is the key, else the address.
    holder = Client.of(identity, None).label
    # Users of one key with a name are several, for a router.
    nameless = Identity(None, identity.digest, identity.address)
    return RouterInput(
        texts=texts,
        request=request,
        given_tokens=given_tokens,
        max_tokens=None if ask.max_tokens is None else ask.max_tokens.tokens,
        has_tools=ask.tools is not None,
        has_schema=ask.form is not None,
        stream=ask.stream,
        user=Client.of(nameless, ask.user).label if ask.user else holder,
        key=holder,
    )


def questioner(ask: GenerationParams, sender: Caller) -> RouterCaller:
    """Return the caller as a router sees it. Raises InvalidRequest for an unknown priority."""
    return RouterCaller(
        priority=sender.priority(field=ask.priority, tier=ask.service_tier),
        client=Client.of(sender.identity, ask.user).label,
        account=account_of(sender.identity),
        group=Client.group_of(sender.identity),
    )


def routed_headers(routed: RoutedCall) -> dict[str, str]:
    return {ROUTED_MODEL: header_safe(routed.chosen.name), ROUTED_WHY: header_safe(routed.why)}


def taken(routed: RoutedCall) -> RouteTaken:
    return RouteTaken(router=routed.router, model=routed.chosen.name, reason=routed.reason.value)


def _prompt(ask: GenerationParams) -> tuple[tuple[str, ...], str, int]:
    if not isinstance(ask.prompt, PromptsParam):
        each = ask.prompt.each if isinstance(ask.prompt, ConversationsParam) else (ask.prompt,)
        messages = [message for conversation in each for message in conversation.messages]
        users = [message.text for message in messages if message.role == "user"]
        texts = tuple(message.text for message in messages)
        return texts, users[-1] if users else texts[-1], 0
    texts = tuple(prompt for prompt in ask.prompt.prompts if isinstance(prompt, str))
    ids = [len(prompt) for prompt in ask.prompt.prompts if not isinstance(prompt, str)]
    return texts, texts[-1] if texts else "", sum(ids)


Holding = Callable[[], Awaitable[list[TimedEvent]]]


class CascadeAttempt(NamedTuple):
    """Hooks for the small model's answer, which is held until it is judged."""

    watched: Callable[[Holding], Awaitable[list[TimedEvent]]] = lambda holding: holding()
    submitted: Callable[[RunningCall], None] = lambda running: None


UNWATCHED = CascadeAttempt()


def with_scores(call: ResolvedRequest) -> ResolvedRequest:
    requests = tuple(
        request if request.top_logprobs is not None else msgspec.structs.replace(request, top_logprobs=0)
        for request in call.requests
    )
    return msgspec.structs.replace(call, requests=requests)


def judged(call: ResolvedRequest, heard: Sequence[TimedEvent]) -> list[JudgedAnswer]:
    logprobs: dict[str, list[float]] = {request.id: [] for request in call.requests}
    finishes: dict[str, Finish] = {}
    for event, _ in heard:
        logprobs[event.id] += [entry.logprob for entry in event.logprobs]
        if event.finish is not None:
            finishes[event.id] = event.finish
    return [
        JudgedAnswer(
            logprobs=tuple(logprobs[request.id][finishes[request.id].thought_tokens :]),
            finish=finishes[request.id].reason,
            has_form=request.constraint is not None and request.constraint.grammar is not None,
        )
        for request in call.requests
    ]


class RequestedModel(NamedTuple):
    chosen: ChosenModel
    routed: RoutedCall | None = None


class CountedPrompt(NamedTuple):
    num_tokens: int
    ignored: Ignored


@dataclass(frozen=True)
class GenerationService:
    models: ModelRegistry
    options: ApiOptions
    attachments: AttachmentFinder
    streams: ResumableStreams
    recall: AnswerLookup | None = None
    calls: RunningCalls = field(default_factory=RunningCalls)

    async def prompt_tokens(
        self, ask: GenerationParams, chosen: ChosenModel, context: RequestContext
    ) -> CountedPrompt:
        """Count the prompt's tokens. Raises InvalidRequest, EngineUnavailable."""
        ask, model = _of_chosen(ask, chosen), chosen.model
        ask = await self.attachments.taken(ask, model, context.owner)
        tokens = await in_thread(partial(tokens_of, ask, model), is_slow=ask.is_slow)
        return CountedPrompt(len(tokens), ask.ignored)

    async def begin(
        self, ask: GenerationParams, context: RequestContext, attempt: CascadeAttempt = UNWATCHED
    ) -> RunningCall:
        """Submit a call, which the caller must enter. Raises InvalidRequest, EngineUnavailable, errors of
        models and limits."""
        return await _GenerationPipeline(self, ask, context).run(attempt)


_PRESET_PATH = "model"


def with_preset(ask: GenerationParams, preset: Preset) -> GenerationParams:
    parameters = {name: value for name, value in preset.parameters.items() if name not in ask.sent}
    limit = preset.max_tokens
    return msgspec.structs.replace(
        ask,
        sampling=msgspec.structs.replace(ask.sampling, **parameters),
        is_seeded=ask.is_seeded or "seed" in parameters,
        max_tokens=ask.max_tokens or (LimitParam(limit, _PRESET_PATH, is_ceiling=True) if limit else None),
        stop=ask.stop or preset.stop,
        prompt=_with_turns(ask.prompt, preset),
    )


def _with_turns(
    prompt: ConversationParam | ConversationsParam | PromptsParam, preset: Preset
) -> ConversationParam | ConversationsParam | PromptsParam:
    """Leave a text to be continued as it is, because it has no turns."""
    if isinstance(prompt, ConversationsParam):
        return msgspec.structs.replace(prompt, each=tuple(_led(one, preset) for one in prompt.each))
    if isinstance(prompt, ConversationParam):
        return _led(prompt, preset)
    text = prompt.prompts[0] if prompt.is_said and len(prompt.prompts) == 1 else None
    if not isinstance(text, str) or not (preset.system or preset.messages or preset.template):
        return prompt
    return _led(ConversationParam([MessageParam({"role": "user", "content": text})], prompt.path), preset)


def _led(prompt: ConversationParam, preset: Preset) -> ConversationParam:
    messages = list(prompt.messages)
    said = [
        MessageParam({"role": one.role, "content": one.content}, path=_PRESET_PATH) for one in preset.messages
    ]
    has_system = any(message.role in ("system", "developer") for message in (*messages[:1], *said))
    if preset.system and not has_system:
        said.insert(0, MessageParam({"role": "system", "content": preset.system}, path=_PRESET_PATH))
    at = 1 if messages and said and messages[0].role in ("system", "developer") else 0
    messages[at:at] = said
    return msgspec.structs.replace(prompt, messages=messages, template=prompt.template or preset.template)


def _of_chosen(ask: GenerationParams, chosen: ChosenModel) -> GenerationParams:
    return ask if chosen.preset is None else with_preset(ask, chosen.preset)


class _GenerationPipeline:
    def __init__(self, service: GenerationService, ask: GenerationParams, context: RequestContext) -> None:
        self._models = service.models
        self._options = service.options
        self._recall = service.recall
        self._attachments = service.attachments
        self._calls = service.calls
        self._ask = ask
        self._context = context
        self._ticket = context.ticket

    async def run(self, attempt: CascadeAttempt) -> RunningCall:
        goal = await self._goal()
        routed = goal.routed
        if routed is None or routed.cascade is None:
            return await self._submitted(goal)
        tried = await self._tried(goal, routed, routed.cascade, attempt)
        if isinstance(tried, RunningCall):
            return tried
        await self._context.refund()
        larger = routed.after(tried, choose_able(self._models, routed.larger, None, Ability.GENERATE))
        self._ticket.sent_to(taken(larger))
        return await self._submitted(RequestedModel(larger.chosen, larger))

    async def _goal(self) -> RequestedModel:
        ask, allowed = self._ask, self._context.identity.allowed_models
        await fetch(self._models, ask.model, allowed)
        router = self._models.router(ask.model, allowed)
        if router is None:
            ability = Ability.GENERATE if ask.recording is None else Ability.HEAR
            chosen = choose_able(self._models, ask.model, allowed, ability, adapter=ask.lora)
            return RequestedModel(chosen)
        if ask.lora is not None:
            message = f"'{router.name}' routes to models of different adapters; name one of them in 'model'."
            raise InvalidRequest(message, param="lora", code="unsupported_value")
        asked, caller = asked_of(ask, self._context.sender), questioner(ask, self._context.sender)
        routed = await follow(self._models, router, asked, caller, ask.model or router.name)
        if routed.cascade is None:  # else it is known when the small model's answer has been judged
            self._ticket.sent_to(taken(routed))
        return RequestedModel(routed.chosen, routed)

    async def _submitted(self, goal: RequestedModel) -> RunningCall:
        call = await self._resolved(goal)
        recalled = await self._recalled(call, goal.chosen)
        running = await self._running(recalled, goal.chosen)
        if running is None:  # the model was replaced meanwhile, maybe by one with other tokens
            anew = self._models.choose(goal.chosen.model.name, None).model
            return await self._submitted(goal._replace(chosen=goal.chosen._replace(model=anew)))
        return running

    async def _resolved(self, goal: RequestedModel) -> ResolvedRequest:
        asking = ResolveContext(goal.chosen, goal.chosen.model.loaded(), self._context.sender, self._options)
        ask = _of_chosen(self._ask, goal.chosen)
        if ask.attached or ask.recording is not None:
            ask = await self._attachments.taken(ask, goal.chosen.model, self._context.owner)
        call = await in_thread(partial(resolve, ask, asking), is_slow=ask.is_slow)
        if goal.routed is None:
            return call
        headers = {**call.headers, **routed_headers(goal.routed)}
        return msgspec.structs.replace(call, model=goal.routed.router, headers=headers)

    async def _recalled(self, call: ResolvedRequest, chosen: ChosenModel) -> CachedAnswer:
        """Find an earlier answer before token limits and queues apply."""
        self._ticket.priority = call.priority
        if self._recall is None:
            return CachedAnswer(call)
        return await self._recall.find(call, chosen, self._context)

    async def _running(self, recalled: CachedAnswer, chosen: ChosenModel) -> RunningCall | None:
        ticket, lease = self._ticket, self._context.lease
        if recalled.held is not None:
            return RunningCall(recalled.call, recalled.held, chosen.model, ticket=ticket, calls=self._calls)
        generation = await self._generation(recalled.call, chosen)
        if generation is None:
            return None
        return RunningCall(
            recalled.call,
            generation,
            chosen.model,
            ticket=ticket,
            calls=self._calls,
            lease=lease,
            recorder=recalled.recorder,
        )

    async def _generation(self, call: ResolvedRequest, chosen: ChosenModel) -> Generation | None:
        context = self._context
        await context.reserve(prompt_tokens=call.prompt_tokens, output_tokens=call.max_output_tokens)
        try:
            generation = chosen.model.engine.generate(call.requests)
        except ServerError:
            await context.refund()
            if not self._models.is_current(chosen.model):
                return None
            raise
        limit_time(generation, context.ticket, call.timeout_s, context.timeout_s)
        return generation

    async def _tried(
        self, goal: RequestedModel, routed: RoutedCall, cascade: Cascade, attempt: CascadeAttempt
    ) -> RunningCall | RouteDecision:
        try:
            call = with_scores(await self._resolved(goal))
            recalled = await self._recalled(call, goal.chosen)
            first = await self._running(recalled, goal.chosen)
            if first is None:
                raise EngineUnavailable("The model is being replaced.")
            attempt.submitted(first)
            async with first:
                heard = await attempt.watched(first.hold)
        except PromptTooLong as error:
            return RouteDecision(cascade.large, RouteReason.TOO_LONG, str(error))
        except (EngineUnavailable, ModelTooLarge, QueueFull, GenerationFailed, ConstraintFailed) as error:
            return RouteDecision(cascade.large, RouteReason.FAILED, str(error))
        decision = verdict(cascade, judged(call, heard))
        if decision.reason is not RouteReason.SURE:
            return decision
        sure = routed.after(decision, goal.chosen)
        self._ticket.sent_to(taken(sure))
        shown = msgspec.structs.replace(first.call, headers={**first.call.headers, **routed_headers(sure)})
        lease = self._context.lease if recalled.held is None else None
        held = ReplayedGeneration(heard, first.figures)
        return RunningCall(
            shown, held, goal.chosen.model, ticket=self._ticket, calls=self._calls, lease=lease
        )
