"""How things stand now: models, queue, running requests and caches, as one key may see them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from openai_cpu_server.api.events.hub import Hub
from openai_cpu_server.api.events.objects import (
    Answers,
    Caches,
    ModelCache,
    Models,
    ModelState,
    Pool,
    Prompts,
    Queue,
    Requests,
    Restart,
    Running,
    Sizes,
    Waiting,
)
from openai_cpu_server.api.events.sight import Sight
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LastDeath, LiveRequest, RequestState
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.shown import ShownState
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import AnswerUse
from openai_cpu_server.observe.recent import Recent

_MOST_LISTED = 100
"""Requests in one list."""
_NO_STATE = ShownState(pool_tiles=0, tile_blocks=1, holdings=(), waits=(), cache_pinned_blocks=0)


class Snapshots:
    def __init__(self, models: ModelRegistry, recent: Recent, hub: Hub, sight: Sight) -> None:
        self._models = models
        self._recent = recent
        self._hub = hub
        self._sight = sight

    def models(self) -> Models:
        return Models(
            models=[_model_state(model) for model in self._seen],
            memory_bytes=self._models.status().rss_bytes,
        )

    def queue(self) -> Queue:
        sizes = {priority.label: Sizes(0, 0) for priority in Priority}
        waiting: list[Waiting] = []
        for model in self._seen:
            status = model.engine.status()
            sizes = {
                label: Sizes(size.running + status.running[label], size.waiting + status.waiting[label])
                for label, size in sizes.items()
            }
            waiting += self._waiting(model, status)
        return Queue(sizes=sizes, waiting=waiting[:_MOST_LISTED])

    def requests(self) -> Requests:
        running = (
            self._running(model, live)
            for model in self._seen
            for live in self._hub.requests_of(model)
            if live.state is RequestState.RUNNING and self._sight.owns(live.client)
        )
        return Requests(running=list(islice(running, _MOST_LISTED)))

    def caches(self) -> Caches:
        return Caches(
            models=list(self._caches()),
            answers=self._answers() if self._sight.is_whole else None,
        )

    def restarts(self, model: ServedModel, status: EngineStatus, after: int) -> Iterator[Restart]:
        """Those behind the first `after` ones, as far as they are remembered."""
        for number, death in enumerate(status.deaths, status.restarts - len(status.deaths) + 1):
            if number > after:
                yield _restart(model, death, number)

    @property
    def seen_models(self) -> Sequence[ServedModel]:
        return self._seen

    @property
    def _seen(self) -> list[ServedModel]:
        return [model for model in self._models.current if self._sight.has_model(model.names)]

    def _waiting(self, model: ServedModel, status: EngineStatus) -> list[Waiting]:
        """In their order: those with a place, and behind them those who came first."""
        state = self._hub.state_of(model) or _NO_STATE
        whys = {wait.id: wait.why for wait in state.waits}
        is_ready = status.state is EngineState.READY
        found = [
            live
            for live in self._hub.requests_of(model)
            if live.state is RequestState.WAITING and self._sight.owns(live.client)
        ]
        found.sort(key=lambda live: (live.position is None, live.position or 0))
        return [
            self._waiting_one(model, live, whys.get(live.id) if is_ready else "engine")
            for live in found[:_MOST_LISTED]
        ]

    def _waiting_one(self, model: ServedModel, live: LiveRequest, why: str | None) -> Waiting:
        return Waiting(
            id=live.id,
            model=model.name,
            priority=live.priority.label,
            client=self._sight.name_of(live.client),
            prompt_tokens=live.prompt_tokens,
            output_tokens=live.output_tokens,
            age_s=round(live.age_s, 2),
            position=live.position,
            first_token_ms=None if live.first_token_ms is None else round(live.first_token_ms, 1),
            why=why,
        )

    def _running(self, model: ServedModel, live: LiveRequest) -> Running:
        return Running(
            id=live.id,
            model=model.name,
            priority=live.priority.label,
            client=self._sight.name_of(live.client),
            prompt_tokens=live.prompt_tokens,
            output_tokens=live.output_tokens,
            age_s=round(live.age_s, 2),
            inputs=live.num_inputs,
            inputs_done=None if live.num_inputs is None else live.num_embedded,
        )

    def _caches(self) -> Iterator[ModelCache]:
        for model in self._seen:
            kv, state = model.engine.kv_stats(), self._hub.state_of(model)
            if kv is not None:
                prompts = _prompts(kv, state or _NO_STATE) if self._sight.is_whole else None
                yield ModelCache(model=model.name, pool=self._pool(kv, state or _NO_STATE), prompts=prompts)

    def _pool(self, kv: KVStats, state: ShownState) -> Pool:
        return Pool(
            block_tokens=kv.block_tokens,
            blocks=kv.pool_blocks,
            used_blocks=kv.pool_blocks_used,
            shared_blocks=kv.pool_blocks_shared,
            tiles=state.pool_tiles,
            tile_blocks=state.tile_blocks,
            holdings=self._sight.holdings(state.holdings),
        )

    def _answers(self) -> Answers | None:
        counts = self._recent.answers
        if not counts:
            return None
        hits, misses = counts[AnswerUse.EXACT] + counts[AnswerUse.SEMANTIC], counts[AnswerUse.MISS]
        return Answers(
            exact=counts[AnswerUse.EXACT],
            semantic=counts[AnswerUse.SEMANTIC],
            misses=misses,
            bypasses=counts[AnswerUse.BYPASS],
            hit_rate=round(hits / (hits + misses), 4) if hits + misses else None,
        )


def _model_state(model: ServedModel) -> ModelState:
    status, info = model.engine.status(), model.engine.info
    return ModelState(
        name=model.name,
        kind=model.kind.value,
        state=status.state.value,
        reason=status.reason,
        loaded=status.loaded,
        quantisation=model.quantisation,
        context_length=info.context_limit if info else None,
        max_seqs=info.max_seqs if info else None,
        threads=info.threads if info else None,
        kv_tokens=status.kv_tokens,
        kv_tokens_used=status.kv_tokens_used,
        memory_bytes=status.engine_rss_bytes,
        restarts=status.restarts,
    )


def _restart(model: ServedModel, death: LastDeath, number: int) -> Restart:
    return Restart(
        model=model.name,
        at=round(time.time() - death.age_s, 3),
        cause=death.cause,
        reason=death.message,
        restarts=number,
    )


def _prompts(kv: KVStats, state: ShownState) -> Prompts:
    return Prompts(
        block_tokens=kv.cache_block_tokens,
        capacity_blocks=kv.cache_capacity_blocks,
        blocks=kv.cache_blocks,
        pinned_blocks=state.cache_pinned_blocks,
        evictions=kv.cache_evictions,
        prompt_tokens=kv.prompt_tokens,
        cached_tokens=kv.cached_tokens,
        hit_rate=round(kv.cached_tokens / kv.prompt_tokens, 4) if kv.prompt_tokens else None,
    )
