"""Between whom the scheduler takes turns, and what is told of them."""

from __future__ import annotations

import enum

import msgspec

from openai_cpu_server.api.access.keys import Identity, Scope

_DIGEST_CHARS = 16
"""Of a key's digest: enough to tell clients apart in a listing."""


class ClientKind(enum.Enum):
    KEY = "key"
    """The holder of a key with a name. Nobody else can be one, whatever a body says."""
    USER = "user"
    """Whom the body names; anybody may write anything there."""
    PEER = "peer"
    """Who names nobody: the address, and the digest of a key without a name or without a need for one."""


class Client(msgspec.Struct, frozen=True):
    """One to whom the scheduler is fair. Its label goes to the engine and comes back with live requests."""

    kind: ClientKind
    name: str

    @classmethod
    def of(cls, identity: Identity, user: str | None) -> Client:
        if identity.holder is not None:
            return cls(ClientKind.KEY, identity.holder)
        if user:
            return cls(ClientKind.USER, user)
        return cls(ClientKind.PEER, f"{(identity.digest or '')[:_DIGEST_CHARS]}@{identity.address or ''}")

    @classmethod
    def of_label(cls, label: str) -> Client:
        """`""` is a peer of whom nothing is known."""
        kind, _, name = label.partition(":")
        return cls(ClientKind(kind) if kind else ClientKind.PEER, name)

    @property
    def label(self) -> str:
        return f"{self.kind.value}:{self.name}"

    def is_owned_by(self, identity: Identity) -> bool:
        """Whether its requests are theirs to see and to end. A name in a body's `user` owns nothing."""
        if identity.may(Scope.ADMIN):
            return True
        return self.kind is ClientKind.KEY and self.name == identity.holder

    def shown_to(self, identity: Identity) -> str:
        """The name to tell them. An address is told to keys of administrators only.

        On a server without keys everybody may see all requests, but nobody is told another's address.
        """
        if self.kind is not ClientKind.PEER:
            return self.name
        digest, _, address = self.name.partition("@")
        is_administrator = identity.key is not None and identity.may(Scope.ADMIN)
        return "@".join(filter(None, (digest, address if is_administrator else "")))
