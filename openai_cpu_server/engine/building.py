"""Construction of a core for models that generate."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.model_info import CostCurve, ModelInfo
from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Backend, Drop, Step
from openai_cpu_server.engine.base import scheduling_on
from openai_cpu_server.engine.generating import EngineCore, Measure
from openai_cpu_server.scheduler.compose import StepOptions
from openai_cpu_server.scheduler.cost_model import CostModel, ThreadCosts
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal, SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import POLICIES
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter, ModelDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator


def build_core(
    options: messages.EngineOptions,
    backend: Backend,
    curve: CostCurve | None,
    measure: Measure | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """Return a core with its saved prefix cache and submitted pinned prompts. `curve`: None to estimate costs
    until there is time to `measure` them."""
    info = backend.info
    options = msgspec.structs.replace(options, scheduling=scheduling_on(options.scheduling, info))
    reuses = options.experiment.prefix_sharing
    journal = PrefixJournal() if options.reports_forecast else None
    cache = _cache(options, backend, journal) if reuses else SavedPrefixes(0, state_bytes=info.state_bytes)
    full = CostModel(curve) if curve else CostModel.guess(info.num_parameters)
    costs = ThreadCosts(full, threads=backend.threads.most)
    scheduler = Scheduler(
        limits=StepLimits(
            info.max_seqs, info.max_step_tokens, info.max_step_outputs, info.state_tokens, reuses
        ),
        ledger=KVLedger(info.kv_tokens // POOL_BLOCK_TOKENS, POOL_BLOCK_TOKENS),
        cache=cache,
        cost=costs,
        options=step_options(options),
        policy=POLICIES[options.scheduling.policy](),
        speculator=_speculator(options, info),
    )
    core = EngineCore(
        scheduler,
        backend,
        costs,
        preempt_threshold_ms=options.scheduling.preempt_threshold_ms,
        measure=measure if curve is None else None,
        journal=journal,
        cache_file=options.cache_file,
        clock=clock,
    )
    for number, tokens in enumerate(options.pinned_prompts):
        pinned = GenerationRequest(
            id=f"pinned/{number}",
            tokens=tokens,
            max_tokens=0,
            sampling=Sampling(seed=0),
            cache_namespace=options.pinned_namespace,
            pin=True,
        )
        core.handle(messages.Submit(request=pinned))
    return core


def step_options(options: messages.EngineOptions) -> StepOptions:
    return StepOptions(**msgspec.structs.asdict(options.scheduling), experiment=options.experiment)


def _speculator(options: messages.EngineOptions, info: ModelInfo) -> Speculator | None:
    """Drafts are off if the memory cannot take back wrong ones."""
    if options.speculation == "off" or info.max_draft == 0:
        return None
    drafter = None
    if info.draft_cost is not None:
        reads_along = info.draft_head is not None
        drafter = ModelDrafter(info.draft_cost, reads_along=reads_along, most=info.draft_most)
    return Speculator(
        LookupDrafter(info.end_tokens),
        drafter,
        max_tokens=options.draft_max if info.max_draft is None else min(options.draft_max, info.max_draft),
        always=options.experiment.always_drafts,
    )


def _cache(options: messages.EngineOptions, backend: Backend, journal: PrefixJournal | None) -> SavedPrefixes:
    info = backend.info
    cache = SavedPrefixes(
        options.cache_bytes,
        block_bytes=BLOCK_TOKENS * info.kv_bytes_per_token,
        state_bytes=info.state_bytes,
        journal=journal,
    )
    if options.cache_file is not None and options.cache_bytes:
        refused = cache.adopt(backend.import_cache(options.cache_file))
        backend.execute(Step(verbs=tuple(Drop(number) for number in refused)))
    return cache
