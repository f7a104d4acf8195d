"""Puts an engine's core together as its options and its model say."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.embedding import EmbedBackend
from openai_cpu_server.contract.messages import EngineOptions, Submit
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.prefix import BLOCK_TOKENS
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Backend, Drop, Step
from openai_cpu_server.engine.core import EngineCore, Measure
from openai_cpu_server.engine.embed_core import EmbedCore
from openai_cpu_server.scheduler.compose import StepOptions
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.embed_queue import EmbedQueue
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.policy import POLICIES
from openai_cpu_server.scheduler.prefix_cache import Journal, PrefixCache
from openai_cpu_server.scheduler.scheduler import Limits, Scheduler
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter, ModelDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator


def build_core(
    options: EngineOptions, backend: Backend, curve: CostCurve | None, measure: Measure | None = None
) -> EngineCore:
    """A core with its scheduler, its saved prefix cache, and its pinned prompts submitted.

    Without a curve it goes by a guess, until it has found time to `measure`.
    """
    info = backend.info
    shares = info.can_share and options.experiment.prefix_sharing
    journal = Journal() if options.tells_forecast else None
    cache = _cache(options, backend, journal) if shares else PrefixCache(0)
    scheduler = Scheduler(
        limits=Limits(info.max_seqs, info.max_step_tokens, info.max_step_outputs, shares),
        ledger=KVLedger(info.kv_tokens // POOL_BLOCK_TOKENS, POOL_BLOCK_TOKENS),
        cache=cache,
        cost=CostModel(curve) if curve else CostModel.guess(info.num_parameters),
        options=step_options(options),
        policy=POLICIES[options.scheduling.policy](),
        speculator=_speculator(options, info),
    )
    core = EngineCore(
        scheduler,
        backend,
        preempt_threshold_s=options.scheduling.preempt_threshold_ms / 1000,
        measure=measure if curve is None else None,
        journal=journal,
    )
    for number, tokens in enumerate(options.pinned_prompts):
        core.handle(Submit(request=_pin(number, tokens, options.pinned_namespace)))
    return core


def build_embed_core(options: EngineOptions, backend: EmbedBackend) -> EmbedCore:
    """A core for a model that embeds. It goes by a guess of what steps cost, and learns while it serves."""
    return EmbedCore(
        EmbedQueue(batch_floor=options.scheduling.batch_floor),
        backend,
        CostModel.guess(backend.info.num_parameters),
        options.scheduling,
    )


def step_options(options: EngineOptions) -> StepOptions:
    """How steps are to be composed."""
    return StepOptions(**msgspec.structs.asdict(options.scheduling), experiment=options.experiment)


def _speculator(options: EngineOptions, info: ModelInfo) -> Speculator | None:
    """None where nothing is to be drafted, or where wrong drafts could not be taken back."""
    if options.speculation == "off" or not info.can_trim:
        return None
    return Speculator(
        LookupDrafter(info.end_tokens),
        ModelDrafter(info.draft_cost) if info.draft_cost is not None else None,
        max_tokens=options.draft_max,
        always=options.experiment.always_drafts,
    )


def _cache(options: EngineOptions, backend: Backend, journal: Journal | None) -> PrefixCache:
    info = backend.info
    block_bytes = BLOCK_TOKENS * info.kv_bytes_per_token
    cache = PrefixCache(options.cache_bytes // block_bytes, journal=journal)
    if options.cache_file is not None and cache.capacity:
        refused = cache.adopt(backend.import_cache(options.cache_file))
        backend.execute(Step(verbs=tuple(Drop(number) for number in refused)))
    return cache


def _pin(number: int, tokens: tuple[int, ...], namespace: str) -> GenerationRequest:
    return GenerationRequest(
        id=f"pinned/{number}",
        tokens=tokens,
        max_tokens=0,
        sampling=Sampling(seed=0),
        cache_namespace=namespace,
        pin=True,
    )
