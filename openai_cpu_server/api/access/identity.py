"""Who sent a request: the key that came with it, looked up, and the address that it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from openai_cpu_server.api.access.clients import Network, client_address
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import STRANGER, Identity, required_scope
from openai_cpu_server.errors import Forbidden, Unauthorized

SUBPROTOCOL = "openai-chat-completions"
"""The name of our WebSocket protocol. Browsers want the server to choose one of those that they offer."""
_KEY_PROTOCOL = "openai-insecure-api-key."
"""A subprotocol that carries a key, as OpenAI has it: pages cannot set headers of a WebSocket."""
_SCOPE_KEY = "openai_cpu_server.identity"


def identify(scope: Scope, keys: KeyRing, trusted_proxies: Collection[Network]) -> Identity:
    """Finds out who sent this request; `identity_of` returns it from then on. Raises Unauthorized."""
    given = given_key(Headers(scope=scope)) or offered_key(scope.get("subprotocols", ()))
    found = _identified(keys, key_identity(given), scope["path"])
    identity = msgspec.structs.replace(found, address=client_address(scope, trusted_proxies))
    scope[_SCOPE_KEY] = identity
    return identity


def identity_of(scope: Scope) -> Identity:
    """Returns who sent this request."""
    identity = scope[_SCOPE_KEY]
    assert isinstance(identity, Identity)
    return identity


def identity_now(scope: Scope, keys: KeyRing) -> Identity:
    """Returns who opened this connection, by the keys as they are now. Raises Unauthorized, Forbidden."""
    before = identity_of(scope)
    identity = _identified(keys, before.digest, scope["path"])
    check_scope(identity, scope["path"], keys)
    return msgspec.structs.replace(identity, address=before.address)


def check_scope(identity: Identity, path: str, keys: KeyRing) -> None:
    """Raises Forbidden."""
    required = required_scope(path)
    if required is not None and not identity.may(required) and not keys.admits_strangers(path):
        raise Forbidden(required.value)


def given_key(headers: Mapping[str, str]) -> bytes | None:
    """The key in `Authorization: Bearer KEY`, else in `x-api-key: KEY`; None where there is neither."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so


def offered_key(subprotocols: Sequence[str]) -> bytes | None:
    """The key among the subprotocols of a WebSocket's handshake."""
    keys = (name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL))
    return next(keys, "").encode("latin-1") or None


def key_identity(given: bytes | None) -> str | None:
    """A digest that is equal for equal keys, and leads nowhere back; None where there is no key."""
    return None if given is None else hashlib.sha256(given).hexdigest()


def _identified(keys: KeyRing, digest: str | None, path: str) -> Identity:
    """`digest` is that of the key that was sent. Raises Unauthorized."""
    if keys.is_open or required_scope(path) is None:
        return Identity(None, digest)
    key = None if digest is None else keys.with_digest(bytes.fromhex(digest))
    if key is None and keys.admits_strangers(path):
        key = STRANGER
    if key is None:
        raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
    return Identity(key, digest)
