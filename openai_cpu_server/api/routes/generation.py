"""The one way of every generating call: parse, choose the model, resolve, submit, then tell or gather."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import Lease
from openai_cpu_server.api.calls.call import PRIORITY_HEADER, Asking, Call, Sender
from openai_cpu_server.api.calls.deadline import limit_time
from openai_cpu_server.api.calls.disconnect import while_connected
from openai_cpu_server.api.calls.event_stream import EventStream
from openai_cpu_server.api.calls.held import Held
from openai_cpu_server.api.calls.recall import Recall, Recalled
from openai_cpu_server.api.calls.running import Running
from openai_cpu_server.api.calls.trial import UNWATCHED, Terms, Trial, judged, with_scores
from openai_cpu_server.api.gates.fair_use import lease_of, release_body, unkept_body
from openai_cpu_server.api.gates.ticket import Ticket, ticket_of
from openai_cpu_server.api.offload import in_thread, off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.renderer import AnswerRenderer, Renderer
from openai_cpu_server.api.resolve.answer_shape import is_slow
from openai_cpu_server.api.resolve.routing import asked_of, questioner, routed_headers, taken
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.parse import Ignored
from openai_cpu_server.contract.engine import Generation
from openai_cpu_server.contract.figures import Figures
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
from openai_cpu_server.models.abilities import Ability, choose_able
from openai_cpu_server.models.registry import Chosen, ModelRegistry
from openai_cpu_server.models.routing.decide import Decision, Reason
from openai_cpu_server.models.routing.follow import Routed, follow
from openai_cpu_server.models.routing.options import Cascade
from openai_cpu_server.models.routing.verdict import verdict

B = TypeVar("B", bound=GenerationBody)
Gathering = Callable[[], Awaitable[dict[str, Answer]]]
Doing = Callable[[Gathering], Awaitable[dict[str, Answer]]]


class Family(Protocol[B]):
    """Chat or text completions: what its bodies are, what they mean, and how it tells answers."""

    @property
    def renderer(self) -> AnswerRenderer: ...

    def read(self, data: bytes, *, lenient: bool) -> tuple[B, Ignored]:
        """The body, checked, and what of it is left out. Runs in any thread. Raises InvalidRequest."""
        ...

    def resolve(self, body: B, asking: Asking) -> Call:
        """Runs in any thread. Raises what `api/errors.py` lists."""
        ...


@dataclass(frozen=True)
class Reading(Generic[B]):
    body: B
    ignored: Ignored
    is_slow: bool
    """It may take more than some milliseconds."""


class Goal(NamedTuple):
    chosen: Chosen
    routed: Routed | None = None
    """What routers had to say about it."""


async def _do(work: Gathering) -> dict[str, Answer]:
    return await work()


class GenerationRoute(Generic[B]):
    def __init__(
        self, family: Family[B], models: ModelRegistry, options: ApiOptions, recall: Recall | None = None
    ) -> None:
        """`recall`: None is no cache of answers."""
        self._family = family
        self._models = models
        self._options = options
        self._recall = recall

    async def create(self, request: Request) -> ASGIApp:
        running = await self._begun(request)
        release_body(request.scope)
        return self._streamed(running) if running.call.stream else await self._gathered(request, running)

    async def _begun(self, request: Request) -> Running:
        """It keeps nothing of the body: the call may wait for long."""
        data = await unkept_body(request)
        sender = self.sender(identity_of(request.scope), header=request.headers.get(PRIORITY_HEADER))
        trial = Trial(partial(while_connected, request.receive))
        return await self.begin(data, sender, ticket_of(request.scope), lease_of(request.scope), trial)

    def sender(self, identity: Identity, *, header: str | None) -> Sender:
        return Sender.of(identity, header=header, default=self._options.default_priority)

    async def begin(
        self, data: bytes, sender: Sender, ticket: Ticket, lease: Lease, trial: Trial = UNWATCHED
    ) -> Running:
        """Resolves and submits. Raises what `api/errors.py` lists. Whoever gets the call must enter it."""
        terms = Terms(ticket, lease, self._options.request_timeout_s)
        return await self.begin_reading(await self._read(data), sender, terms, trial)

    async def begin_reading(
        self, reading: Reading[B], sender: Sender, terms: Terms, trial: Trial = UNWATCHED
    ) -> Running:
        """The same with a body that was read elsewhere."""
        goal = await self._goal(reading.body, sender, terms.ticket)
        return await self._submitted(reading, goal, sender, terms, trial)

    def renderer(self, running: Running) -> Renderer:
        """The renderer of a call that is streamed."""
        return self._family.renderer.stream(running.call, running.model.pieces)

    async def whole(self, running: Running, do: Doing = _do) -> bytes:
        """The answer of a call that is not streamed. `do` does the work as long as somebody wants it."""
        async with running:
            answers = await do(running.gather)
        figures = running.figures
        render = partial(self._family.renderer.whole, running.call, running.model.pieces, answers, figures)
        return await off_loop(_shown_bytes(running.call, figures), render)

    async def answer(self, data: bytes, sender: Sender, terms: Terms) -> bytes:
        """The whole answer to a body that came by no request of its own, such as a row of a batch job.

        Raises what `api/errors.py` lists. The server's limit of time is not for these, which wait long.
        """
        reading = await self._read(data)
        if reading.body.stream:
            message = "'stream' is not possible in a batch."
            raise InvalidRequest(message, param="stream", code="unsupported_value")
        goal = await self._goal(reading.body, sender, terms.ticket)
        running = await self._submitted(reading, goal, sender, terms, UNWATCHED)
        try:
            return await self.whole(running)
        except GenerationFailed:
            running.model.loaded()  # an engine that is gone takes its requests with it: not their fault
            raise

    async def _read(self, data: bytes) -> Reading[B]:
        reading = partial(self._family.read, data, lenient=self._options.lenient)
        body, ignored = await off_loop(len(data), reading)
        return Reading(body, ignored, is_slow(data))

    async def _goal(self, body: B, sender: Sender, ticket: Ticket) -> Goal:
        """The model that is to be asked. Raises ModelNotFound, WrongModelKind."""
        allowed = sender.identity.allowed_models
        router = self._models.router(body.model, allowed)
        if router is None:
            return Goal(choose_able(self._models, body.model, allowed, Ability.GENERATE, adapter=body.lora))
        if body.lora is not None:
            message = f"'{router.name}' routes to models of different adapters; name one of them in 'model'."
            raise InvalidRequest(message, param="lora", code="unsupported_value")
        name = body.model or router.name
        routed = await follow(self._models, router, asked_of(body, sender), questioner(body, sender), name)
        if routed.cascade is None:  # else it is known when the small model's answer has been judged
            ticket.sent_to(taken(routed))
        return Goal(routed.chosen, routed)

    async def _submitted(
        self, reading: Reading[B], goal: Goal, sender: Sender, terms: Terms, trial: Trial
    ) -> Running:
        """Of a cascade: the small model's answer, if that is good enough; else the large one is asked."""
        routed = goal.routed
        if routed is None or routed.cascade is None:
            return await self._asked(reading, goal, sender, terms)
        tried = await self._tried(reading, goal, routed.cascade, sender, terms, trial)
        if isinstance(tried, Running):
            return tried
        await terms.refund()
        larger = routed.after(tried, self._larger(routed))
        terms.ticket.sent_to(taken(larger))
        return await self._asked(reading, Goal(larger.chosen, larger), sender, terms)

    def _larger(self, routed: Routed) -> Chosen:
        return choose_able(self._models, routed.larger, None, Ability.GENERATE)

    async def _asked(self, reading: Reading[B], goal: Goal, sender: Sender, terms: Terms) -> Running:
        """Resolves for this model and submits."""
        call = await self._resolved(reading, goal, sender)
        recalled = await self._recalled(call, goal.chosen, sender, terms)
        if recalled.held is not None:
            return Running(recalled.call, recalled.held, goal.chosen.model, ticket=terms.ticket)
        generation = await self._generation(recalled.call, goal.chosen, terms)
        if generation is None:  # the model was replaced meanwhile, maybe by one with other tokens
            anew = self._models.choose(goal.chosen.model.name, None).model
            chosen = goal.chosen._replace(model=anew)
            return await self._asked(reading, goal._replace(chosen=chosen), sender, terms)
        generation = recalled.recorded(generation)
        return Running(recalled.call, generation, goal.chosen.model, ticket=terms.ticket, lease=terms.lease)

    async def _recalled(self, call: Call, chosen: Chosen, sender: Sender, terms: Terms) -> Recalled:
        """An earlier answer counts against no limit of tokens, and waits for nobody."""
        terms.ticket.priority = call.priority
        if self._recall is None:
            return Recalled(call)
        return await self._recall.find(call, chosen, sender.identity, terms.ticket)

    async def _generation(self, call: Call, chosen: Chosen, terms: Terms) -> Generation | None:
        """None: the model has been replaced."""
        await terms.reserve(call)
        try:
            generation = chosen.model.engine.generate(call.requests)
        except ServerError:
            await terms.refund()
            if not self._models.is_current(chosen.model):
                return None
            raise
        limit_time(generation, terms.ticket, call.timeout_s, terms.timeout_s)
        return generation

    async def _resolved(self, reading: Reading[B], goal: Goal, sender: Sender) -> Call:
        asking = Asking(goal.chosen, goal.chosen.model.loaded(), sender, self._options, reading.ignored)
        call = await in_thread(partial(self._family.resolve, reading.body, asking), is_slow=reading.is_slow)
        if goal.routed is None:
            return call
        headers = {**call.headers, **routed_headers(goal.routed)}
        return msgspec.structs.replace(call, model=goal.routed.router, headers=headers)

    async def _tried(
        self, reading: Reading[B], goal: Goal, cascade: Cascade, sender: Sender, terms: Terms, trial: Trial
    ) -> Running | Decision:
        """The small model's answers, held, or why the large one is to answer."""
        try:
            call = with_scores(await self._resolved(reading, goal, sender))
            recalled = await self._recalled(call, goal.chosen, sender, terms)
            first = await self._first(recalled, goal.chosen, terms)
            trial.submitted(first)
            async with first:
                heard = await trial.watched(first.hold)
        except PromptTooLong as error:
            return Decision(cascade.large, Reason.TOO_LONG, str(error))
        except (EngineUnavailable, ModelTooLarge, QueueFull, GenerationFailed, ConstraintFailed) as error:
            return Decision(cascade.large, Reason.FAILED, str(error))
        decision = verdict(cascade, judged(call, heard))
        if decision.reason is not Reason.SURE:
            return decision
        assert goal.routed is not None
        sure = goal.routed.after(decision, goal.chosen)
        terms.ticket.sent_to(taken(sure))
        shown = msgspec.structs.replace(first.call, headers={**first.call.headers, **routed_headers(sure)})
        held = Held(heard, first.figures)
        lease = terms.lease if recalled.held is None else None
        return Running(shown, held, goal.chosen.model, ticket=terms.ticket, lease=lease)

    async def _first(self, recalled: Recalled, chosen: Chosen, terms: Terms) -> Running:
        """The small model's call, or its earlier answer. Raises EngineUnavailable."""
        if recalled.held is not None:
            return Running(recalled.call, recalled.held, chosen.model, ticket=terms.ticket)
        generation = await self._generation(recalled.call, chosen, terms)
        if generation is None:
            raise EngineUnavailable("The model is being replaced.")
        generation = recalled.recorded(generation)
        return Running(recalled.call, generation, chosen.model, ticket=terms.ticket, lease=terms.lease)

    def _streamed(self, running: Running) -> ASGIApp:
        return EventStream(running, self.renderer(running), keep_alive_s=self._options.keep_alive_s)

    async def _gathered(self, request: Request, running: Running) -> Response:
        body = await self.whole(running, partial(while_connected, request.receive))
        return Response(body, media_type="application/json", headers=dict(running.call.headers))


def _shown_bytes(call: Call, figures: Figures) -> int:
    """About the size of the response: with log-probabilities it can be megabytes."""
    per_token = 4 if call.shown_logprobs is None else 64 * (1 + call.shown_logprobs)
    return per_token * figures.total_tokens
