"""What the API and the batch jobs are told, of all settings."""

from __future__ import annotations

import socket

import msgspec

from openai_cpu_server.api.access.clients import is_loopback
from openai_cpu_server.api.options import ApiOptions, SchedulingOptions
from openai_cpu_server.jobs.options import JobOptions
from openai_cpu_server.model_options import fields_for
from openai_cpu_server.settings import Settings, revealed

_MIB = 1024 * 1024


def api_options(settings: Settings) -> ApiOptions:
    """What both call by the same name, and what the API is told in other words and units."""
    in_other_words = {
        "api_key": revealed(settings.api_key),
        "max_body_bytes": settings.max_body_mb * _MIB,
        "max_bodies_bytes": max(settings.max_bodies_mb, settings.max_body_mb) * _MIB,
        "max_file_bytes": settings.max_file_mb * _MIB,
        "default_priority": settings.priority,
        "isolate_by_key": settings.isolates_by_key,
        "request_timeout_s": settings.request_timeout,
        "cors_origins": tuple(settings.cors_origin),
        "hosts": _hosts(settings),
        "is_admin_open": settings.open_admin or is_on_loopback(settings.host),
        "trusted_proxies": tuple(settings.trusted_proxy),
        "prices": {model: table.price for model, table in settings.prices.items()},
        "compares_turns": settings.semantic_cache is not None,
        "scheduling": SchedulingOptions(
            **msgspec.structs.asdict(settings.scheduling), max_queue=settings.max_queue
        ),
    }
    return ApiOptions(**fields_for(ApiOptions, settings, of=Settings) | in_other_words)


def _hosts(settings: Settings) -> frozenset[str] | None:
    """The names that clients may call the server by; None: any, for it has names that it does not know."""
    if not settings.allowed_host and not is_on_loopback(settings.host):
        return None
    return frozenset({"localhost", settings.host.lower(), *settings.allowed_host})


def is_on_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
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
