"""The routes of `/generate` and its kin."""

from __future__ import annotations

from openai_cpu_server.api.admin.models import ModelCard
from openai_cpu_server.api.asking.route import BodyReader, Family, GenerationRoute
from openai_cpu_server.api.generate.batch import GenerateBatchRoute, ModelInfoRoute
from openai_cpu_server.api.generate.body import GenerateBatchBody, GenerateBody, generate_ask
from openai_cpu_server.api.generate.render import Generated, GeneratedBatch, GenerateRenderer
from openai_cpu_server.api.parts import ServerParts
from openai_cpu_server.http.errors import CLIENT_GONE
from openai_cpu_server.http.keys import CALLS, INFERENCE
from openai_cpu_server.http.routes import GENERATION_ERRORS, RouteRoom, RouteRow

GENERATE = Family(BodyReader(GenerateBody, generate_ask), GenerateRenderer())


class GenerateRoutes:
    def __init__(self, parts: ServerParts) -> None:
        options = parts.options
        self.route = GenerationRoute(GENERATE, parts.generation, options)
        self.batch = GenerateBatchRoute(
            self.route,
            GENERATE.reader,
            parts.generation,
            limits=parts.limits,
            endings=parts.endings,
            options=options,
        )
        self.model = ModelInfoRoute(parts.models)


_ONE = RouteRow[GenerateRoutes](
    "POST",
    "/generate",
    lambda at: at.route.create,
    access=CALLS,
    summary="Answer a prompt, under an older server's name",
    tag="Compatibility",
    body=GenerateBody,
    answer=Generated,
    streams=True,
    stream_form="With `stream`: `data: ` and an object with a `text`, and so on; the last has the `metrics`.",
    errors=GENERATION_ERRORS,
)
ROOM = RouteRoom[ServerParts, GenerateRoutes](
    GenerateRoutes,
    (
        _ONE,
        _ONE.at("/v1/generate"),
        RouteRow(
            "POST",
            "/v1/generate/batch",
            lambda at: at.batch.create,
            access=INFERENCE,
            summary="Several of them at once; one that fails fails alone",
            tag="Compatibility",
            body=GenerateBatchBody,
            answer=GeneratedBatch,
            errors=(429, CLIENT_GONE),
        ),
        RouteRow(
            "GET",
            "/v1/model/info",
            lambda at: at.model.info,
            access=INFERENCE,
            summary="The model that is asked when none is named, or the one named",
            tag="Compatibility",
            query={"model": {"type": "string"}},
            answer=ModelCard,
            errors=(404,),
        ),
    ),
)
