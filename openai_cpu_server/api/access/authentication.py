"""The layer that finds out who sent a request, and whether they may."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.access.addresses import Network, client_address
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.scopes import required_scope
from openai_cpu_server.api.auth import given_key, key_identity, offered_key
from openai_cpu_server.errors import Forbidden, Unauthorized

_SCOPE_KEY = "openai_cpu_server.identity"


class Authentication:
    """Requests and WebSockets that may not pass never reach the layers below."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing, trusted_proxies: Collection[Network]) -> None:
        self._app = app
        self._keys = keys
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            self._admit(scope)
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Raises Unauthorized, Forbidden."""
        path = scope["path"]
        identity = _identified(self._keys, key_identity(_given(scope)), path)
        address = client_address(scope, self._trusted_proxies)
        scope[_SCOPE_KEY] = identity = msgspec.structs.replace(identity, address=address)
        _check_scope(identity, path)


def _identified(keys: KeyRing, digest: str | None, path: str) -> Identity:
    """`digest`: of the key that was sent. Raises Unauthorized."""
    if keys.is_open or required_scope(path) is None:
        return Identity(None, digest)
    key = None if digest is None else keys.with_digest(bytes.fromhex(digest))
    if key is None:
        raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
    return Identity(key, digest)


def _check_scope(identity: Identity, path: str) -> None:
    """Raises Forbidden."""
    required = required_scope(path)
    if required is not None and not identity.may(required):
        raise Forbidden(required.value)


def _given(scope: Scope) -> bytes | None:
    return given_key(Headers(scope=scope)) or offered_key(scope.get("subprotocols", ()))


def key_name(scope: Scope) -> str | None:
    """Of whoever sent this request, as far as that is known."""
    identity = scope.get(_SCOPE_KEY)
    return identity.holder if isinstance(identity, Identity) else None


def identity_of(scope: Scope) -> Identity:
    """Of whoever sent this request."""
    identity = scope[_SCOPE_KEY]
    assert isinstance(identity, Identity)
    return identity


def identity_now(scope: Scope, keys: KeyRing) -> Identity:
    """Of whoever opened this connection, by the keys as they are now. Raises Unauthorized, Forbidden."""
    before = identity_of(scope)
    identity = _identified(keys, before.digest, scope["path"])
    _check_scope(identity, scope["path"])
    return msgspec.structs.replace(identity, address=before.address)
