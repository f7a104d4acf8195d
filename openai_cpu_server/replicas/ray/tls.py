"""TLS between replicas, with the certificates that Ray's environment variables name for Ray itself."""

from __future__ import annotations

import ssl
from collections.abc import Mapping


def server_tls(env: Mapping[str, str]) -> ssl.SSLContext | None:
    """None: Ray speaks plain TCP here."""
    if not _is_on(env):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _with_certificates(context, env)


def client_tls(env: Mapping[str, str]) -> ssl.SSLContext | None:
    """None: Ray speaks plain TCP here."""
    if not _is_on(env):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # Ray's nodes are known by address; the authority is the cluster's own
    return _with_certificates(context, env)


def _is_on(env: Mapping[str, str]) -> bool:
    return env.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _with_certificates(context: ssl.SSLContext, env: Mapping[str, str]) -> ssl.SSLContext:
    """Each side shows its certificate. Raises KeyError and OSError, where Ray could not have started."""
    context.load_cert_chain(env["RAY_TLS_SERVER_CERT"], env["RAY_TLS_SERVER_KEY"])
    if "RAY_TLS_CA_CERT" in env:
        context.load_verify_locations(env["RAY_TLS_CA_CERT"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context
