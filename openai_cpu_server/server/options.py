"""Options of the API, batch jobs and engines, derived from the settings."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import msgspec

from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.config.models import fields_for
from openai_cpu_server.config.settings import Settings, revealed
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.replica import cache_namespace, key_identity
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.keys import is_loopback
from openai_cpu_server.http.options import ApiOptions, MediaOptions, SchedulingOptions
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.sampling import sampling_in_file
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.model_source.aliases import recommended_sampling
from openai_cpu_server.model_source.resolve import AdapterFiles
from openai_cpu_server.models.defaults import DEFAULT_OUTPUT_TOKENS, DEFAULT_REASONING_TOKENS, ModelDefaults
from openai_cpu_server.prompt.chat_prompts import whole_prompt
from openai_cpu_server.reader.model import profiled
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.server.plans import MemoryShare, ModelPlan

_MIB = 1024 * 1024


def api_options(settings: Settings) -> ApiOptions:
    folder = settings.media_dir and expanded_path(settings.media_dir)
    if folder is not None and not folder.is_dir():
        raise StartupError(f"--media-dir: the folder {folder} does not exist")
    hosts: frozenset[str] | None = None
    if settings.allowed_host or is_on_loopback(settings.host):  # else the server cannot know its names
        hosts = frozenset({"localhost", settings.host.lower(), *settings.allowed_host})
    other_options = {
        "api_key": revealed(settings.api_key),
        "max_body_bytes": settings.max_body_mb * _MIB,
        "max_bodies_bytes": max(settings.max_bodies_mb, settings.max_body_mb) * _MIB,
        "max_file_bytes": settings.max_file_mb * _MIB,
        "default_priority": Priority[settings.default_priority.upper()],
        "isolate_by_key": settings.isolates_by_key,
        "request_timeout_s": settings.request_timeout,
        "keep_streams_s": settings.resume_seconds,
        "cors_origins": tuple(settings.cors_origin),
        "hosts": hosts,
        "is_admin_open": settings.open_admin,
        "trusted_proxies": tuple(settings.trusted_proxy),
        "prices": {model: table.price for model, table in settings.prices.items()},
        "compares_turns": settings.semantic_cache is not None,
        "media": MediaOptions(
            max_bytes=settings.max_picture_mb * _MIB,
            max_pixels=settings.max_picture_pixels,
            max_sound_bytes=settings.max_sound_mb * _MIB,
            max_sound_s=settings.max_sound_seconds,
            domains=tuple(settings.allowed_media_domain),
            hosts=tuple(settings.allowed_media_host),
            folder=folder,
        ),
        "scheduling": SchedulingOptions(
            **msgspec.structs.asdict(settings.scheduling), max_queue=settings.max_queue
        ),
    }
    return ApiOptions(**fields_for(ApiOptions, settings, of=Settings) | other_options)


def is_on_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if not host:
        return False  # all addresses
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(is_loopback(str(address[0])) for *_, address in found)


def job_options(settings: Settings, model: str) -> JobOptions:
    return JobOptions(
        model=model,
        max_rows=settings.max_batch_rows,
        max_line_bytes=settings.max_body_mb * _MIB,
        concurrency=settings.batch_concurrency,
        response_lifetime_s=settings.response_days * 24 * 3600,
    )


logger = logging.getLogger(__name__)


def engine_options(
    settings: Settings, plan: ModelPlan, tokenizer: Tokenizer, readers: ReaderPool, *, cache_bytes: int
) -> EngineOptions:
    """Prefer the user's choices, then `tune`'s. The prefix cache's location stays open unless chosen."""
    of, pinned_namespace = plan.options, ""
    if settings.cache_dir is not None and settings.profile_dir.exists() and not settings.profile_dir.is_dir():
        raise StartupError(f"--cache-dir: {settings.profile_dir} is not a folder")
    if expanded_path(of.cache_file).is_dir():
        raise StartupError(f"--cache-file: {of.cache_file} is a folder")
    if settings.isolates_by_key and settings.api_key is not None:
        # Pinned prompts are shared with the holders of the server's key.
        identity = key_identity(settings.api_key.get_secret_value().encode())
        pinned_namespace = cache_namespace(salt=None, key=identity)
    options = settings.engine_options(
        plan.path,
        cache_bytes=cache_bytes,
        draft_model_path=plan.draft,
        projector_path=plan.projector,
        adapters=tuple(AdapterFiles(None).of_operator(source) for source in plan.adapters),
        adapter_folders=adapter_files(settings).folders,
        pinned_prompts=tuple(_pinned(path, tokenizer) for path in of.pin_prompt),
        pinned_namespace=pinned_namespace,
        of=of,
    )
    threads, cpus = max(of.threads or 1, of.threads_batch or 1), Machine().num_cpus()
    if threads > cpus:
        logger.warning(
            "%d threads on %d CPUs wait for each other: steps take many times longer", threads, cpus
        )
    if of.pin_prompt and settings.api_keys is not None and settings.isolates_by_key:
        logger.warning("keys of --api-keys do not use pinned prompts, except with --cache-isolation off")
    if of.profile != "auto" or not settings.profile_dir.is_dir():
        return options
    chosen = frozenset(of.model_fields_set | settings.model_fields_set)
    profile = profiled(readers, options, str(settings.profile_dir), chosen)
    if profile.found is not None:
        logger.info("using the profile that was tuned for this model here: %s", profile.found)
    return profile.options


def model_defaults(settings: Settings, plan: ModelPlan, header: GgufHeader, *, thinks: bool) -> ModelDefaults:
    """Merge defaults of the server, the model's makers, its file and its table."""
    own, is_bare = plan.of_table.sampling, plan.options.sampling_defaults == "openai"
    values = own
    if not is_bare:
        in_file = sampling_in_file(header, but=own)
        values = {**settings.sampling, **recommended_sampling(plan.path), **in_file, **own}
    most = plan.options.max_output_tokens
    if most is None:
        most = DEFAULT_REASONING_TOKENS if thinks else DEFAULT_OUTPUT_TOKENS
    return ModelDefaults(values=values, is_bare=is_bare, max_output_tokens=most or None)


def adapter_files(settings: Settings) -> AdapterFiles:
    folder = settings.adapter_dir and expanded_path(settings.adapter_dir)
    if folder is not None and not folder.is_dir():
        raise StartupError(f"--adapter-dir: the folder {folder} does not exist")
    return AdapterFiles(folder)


def read_text(path: Path) -> str:
    try:
        return expanded_path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read {path}: {error}") from None


def cache_bytes(plan: ModelPlan, share: MemoryShare | None) -> int:
    """`share`: None for a model that has the machine for itself."""
    if plan.options.cache_mb is not None:
        return plan.options.cache_mb * _MIB
    return Machine().total_memory() // 4 if share is None else share.cache_bytes


def _pinned(path: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokenize with BOS and control tokens, as in requests."""
    tokens = whole_prompt(read_text(path), tokenizer, most_tokens=None)
    if not tokens:
        raise StartupError(f"{path} contains no text to pin")
    return tokens
