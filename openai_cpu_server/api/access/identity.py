"""Who sent a request: the key that came with it, looked up, and the address that it came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from openai_cpu_server.api.access.access import Access
from openai_cpu_server.api.access.clients import Network, client_address
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import STRANGER, VISITOR, Identity, Key
from openai_cpu_server.contract.prefix import key_identity
from openai_cpu_server.errors import Forbidden, Unauthorized

SUBPROTOCOL = "openai-chat-completions"
"""The name of our WebSocket protocol. Browsers want the server to choose one of those that they offer."""
_KEY_PROTOCOL = "openai-insecure-api-key."
"""A subprotocol that carries a key, as OpenAI has it: pages cannot set headers of a WebSocket."""
_ADMIN_IS_LOCAL = (
    "Without API keys they belong to the server's own machine: see --api-key, --api-keys and --open-admin."
)
_SCOPE_KEY = "openai_cpu_server.identity"
_ASKED_KEY = "openai_cpu_server.asked"


def identify(
    scope: Scope,
    access: Access,
    keys: KeyRing,
    trusted_proxies: Collection[Network],
    *,
    is_administrator: bool,
) -> Identity:
    """Finds out who sent this request to a route; `identity_of` returns it from then on.

    `is_administrator`: they would be one on a server without keys. Raises Unauthorized, Forbidden.
    """
    given = given_key(Headers(scope=scope)) or offered_key(scope.get("subprotocols", ()))
    asked = _Asked(access, is_visitor=keys.is_open and not is_administrator)
    found = _identified(keys, key_identity(given), asked)
    identity = msgspec.structs.replace(found, address=client_address(scope, trusted_proxies))
    scope[_SCOPE_KEY], scope[_ASKED_KEY] = identity, asked
    return identity


def identity_of(scope: Scope) -> Identity:
    """Returns who sent this request."""
    identity = scope[_SCOPE_KEY]
    assert isinstance(identity, Identity)
    return identity


def identity_now(scope: Scope, keys: KeyRing) -> Identity:
    """Returns who opened this connection, by the keys as they are now. Raises Unauthorized, Forbidden."""
    before, asked = identity_of(scope), scope[_ASKED_KEY]
    assert isinstance(asked, _Asked)
    return msgspec.structs.replace(_identified(keys, before.digest, asked), address=before.address)


def given_key(headers: Mapping[str, str]) -> bytes | None:
    """The key in `Authorization: Bearer KEY`, else in `x-api-key: KEY`; None where there is neither."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so


def offered_key(subprotocols: Sequence[str]) -> bytes | None:
    """The key among the subprotocols of a WebSocket's handshake."""
    keys = (name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL))
    return next(keys, "").encode("latin-1") or None


class _Asked(msgspec.Struct, frozen=True):
    """What a request asks for, whatever the keys are meanwhile."""

    access: Access
    is_visitor: bool
    """There are no keys, and this is nobody who administrates such a server."""


def _identified(keys: KeyRing, digest: str | None, asked: _Asked) -> Identity:
    """`digest` is that of the key that was sent. Raises Unauthorized, Forbidden."""
    identity = Identity(_key(keys, digest, asked), digest)
    required = asked.access.scope
    if required is None or identity.may(required) or keys.admits_strangers(asked.access):
        return identity
    raise Forbidden(required.value, _ADMIN_IS_LOCAL if asked.is_visitor else "")


def _key(keys: KeyRing, digest: str | None, asked: _Asked) -> Key | None:
    """None: everything is allowed. Raises Unauthorized."""
    if keys.is_open:
        return VISITOR if asked.is_visitor else None
    if asked.access.scope is None:
        return None
    key = None if digest is None else keys.with_digest(bytes.fromhex(digest))
    if key is None and keys.admits_strangers(asked.access):
        key = STRANGER
    if key is None:
        raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
    return key
