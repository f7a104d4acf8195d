"""Who sent a request: the key that came with it, looked up, and the address that it came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

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


class Claim(msgspec.Struct, frozen=True):
    """The key and the address that a request has come with, and what it asks for. Whether it may have that is
    for the keys to say, as they are at any time."""

    digest: str | None
    """That of the key which was sent."""
    address: str | None
    access: Access
    is_visitor: bool
    """There are no keys, and this is nobody who administrates such a server."""

    @classmethod
    def of(
        cls,
        scope: AsgiScope,
        access: Access,
        keys: KeyRing,
        trusted_proxies: Collection[Network],
        *,
        is_administrator: bool,
    ) -> Claim:
        """`is_administrator`: they would be one on a server without keys."""
        given = given_key(Headers(scope=scope)) or offered_key(scope.get("subprotocols", ()))
        return cls(
            key_identity(given),
            client_address(scope, trusted_proxies),
            access,
            is_visitor=keys.is_open and not is_administrator,
        )

    def identity(self, keys: KeyRing) -> Identity:
        """Who that is, by the keys as they are now. Raises Unauthorized, Forbidden."""
        identity = Identity(self._key(keys), self.digest, self.address)
        required = self.access.scope
        if required is None or identity.may(required) or keys.admits_strangers(self.access):
            return identity
        raise Forbidden(required.value, _ADMIN_IS_LOCAL if self.is_visitor else "")

    def _key(self, keys: KeyRing) -> Key | None:
        """None: everything is allowed. Raises Unauthorized."""
        if keys.is_open:
            return VISITOR if self.is_visitor else None
        if self.access.scope is None:
            return None
        key = None if self.digest is None else keys.with_digest(bytes.fromhex(self.digest))
        if key is None and keys.admits_strangers(self.access):
            key = STRANGER
        if key is None:
            raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
        return key


def given_key(headers: Mapping[str, str]) -> bytes | None:
    """The key in `Authorization: Bearer KEY`, else in `x-api-key: KEY`; None where there is neither. An empty
    one is none: clients send it that were told of no key."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so


def offered_key(subprotocols: Sequence[str]) -> bytes | None:
    """The key among the subprotocols of a WebSocket's handshake."""
    keys = (name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL))
    return next(keys, "").encode("latin-1") or None
