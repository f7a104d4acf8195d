"""`[ray]` of the TOML file: number and resources of replicas with Ray Serve."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RayTable(BaseModel):
    """Options of `openai-cpu-server ray`."""

    model_config = ConfigDict(extra="forbid")

    address: str | None = Field(
        None, description="the cluster, such as auto; default: RAY_ADDRESS, else a new one"
    )
    name: str = Field("openai-cpu-server", min_length=1, description="of the Serve application")
    replicas: int = Field(1, ge=1, description="engine replicas of each model, at least")
    max_replicas: int | None = Field(
        None, ge=1, description="engine replicas of each model, at most; default: as many as 'replicas'"
    )
    cpus: float = Field(
        1.0,
        gt=0,
        description="of each engine replica; a whole number: its threads have as many CPUs for themselves",
    )
    memory_gb: float | None = Field(
        None, gt=0, description="of each engine replica; default: nothing is reserved"
    )
    resources: dict[str, float] = Field(
        {}, description="what else a node must have for an engine replica, by Ray's names"
    )
    one_per_node: bool = Field(False, description="never two engine replicas of a model on one node")
    pin: Literal["auto", "off"] = Field(
        "auto", description="auto: engine replicas divide a node's CPUs, each on as few NUMA nodes as can be"
    )
    api_replicas: int = Field(1, ge=1, description="processes that clients talk to")
    ingress: Literal["replicas", "proxy"] = Field(
        "replicas",
        description="who listens: API replicas, each on its node, or Ray Serve's proxies, on every node",
    )
    api_cpus: float = Field(0.25, ge=0, description="of each of them, for placement only")
    target_wait_ms: float = Field(
        1000.0,
        gt=0,
        description="more replicas come where interactive newcomers are to wait longer than this",
    )
    up_after_s: float = Field(15.0, ge=0, description="how long more must be needed before more are started")
    down_after_s: float = Field(300.0, ge=0, description="how long fewer must have sufficed before some end")
    lease_s: float = Field(
        8.0,
        ge=1,
        description="an engine replica that hears nothing of an API replica for so long ends its requests; "
        "half of it after the last answer, the API replica replays them elsewhere",
    )
    drain_s: float = Field(120.0, gt=0, description="what a replica that is to end gets for what it computes")
    health_s: float = Field(5.0, gt=0, description="how often Ray asks each replica whether it is well")
    retry_s: float = Field(
        30.0, gt=0, description="an engine replica whose model cannot be loaded is replaced after so long"
    )

    @model_validator(mode="after")
    def _at_most_is_not_less(self) -> RayTable:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas is less than replicas")
        return self

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas
