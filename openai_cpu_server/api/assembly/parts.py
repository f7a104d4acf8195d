"""What routes are made of."""

from __future__ import annotations

from typing import NamedTuple

from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.calls.recall import Recall
from openai_cpu_server.api.gates.ticket import Endings
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.watch import Watch


class Parts(NamedTuple):
    models: ModelRegistry
    options: ApiOptions
    keys: KeyRing
    limits: RateLimits
    bodies: BodyBudget
    endings: Endings
    watch: Watch
    jobs: Jobs | None
    """None: there is no batch API, and no response is stored."""
    recall: Recall | None
    """None: there is no cache of answers."""
