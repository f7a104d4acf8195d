"""Until the families' routes take the context themselves."""

from __future__ import annotations

from starlette.types import Scope

from openai_cpu_server.api.access.rate_limits import Lease
from openai_cpu_server.http.body import unkept_body as unkept_body
from openai_cpu_server.http.context import context_of


def lease_of(scope: Scope) -> Lease:
    """The lease of a request to a metered route."""
    lease = context_of(scope).lease
    assert lease is not None
    return lease


def release_body(scope: Scope) -> None:
    """Gives the budget back early, for a request that goes on for long after its body is understood."""
    context_of(scope).body.release()
