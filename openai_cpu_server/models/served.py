"""One served model: its names, its engine, and all that a request to it needs."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.engine import Engine, EngineState, unavailable
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind, Tokenizer
from openai_cpu_server.models.grammars import Grammars
from openai_cpu_server.models.pieces import Pieces
from openai_cpu_server.models.thinking import ModelThinking
from openai_cpu_server.prompt.chat_prompts import Prompts
from openai_cpu_server.prompt.rerank_template import RerankPrompts
from openai_cpu_server.prompt.tool_formats import ToolFormat


class ServedModel:
    """Its engine belongs to the event loop's thread; all else may be used in any."""

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        created: int,
        engine: Engine,
        tokenizer: Tokenizer,
        prompts: Prompts,
        tool_format: ToolFormat,
        grammars: Grammars,
        rerank: RerankPrompts | None = None,
        kind: ModelKind = ModelKind.GENERATES,
        may_retry: Callable[[], bool] = lambda: False,
        quantisation: str | None = None,
        thinking: ModelThinking | None = None,
        content_digest: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`names`: the first is the model's own, the others mean the same. `created`: Unix time.

        `rerank`: None for a model without a template that asks yes or no. `may_retry`: it has failed, and a
        request may make it try again. `quantisation`: what its file states, such as `q4_k_m`. `thinking`:
        None for a model that does not think, or whose thoughts are to be part of its answers.
        `content_digest` reads the whole file, which takes its time; None: it is not the file any more that
        the model was made of.
        """
        self.content_digest = content_digest
        self.quantisation = quantisation
        self._may_retry = may_retry
        self.names = names
        self.created = created
        self.engine = engine
        self.kind = kind
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self.thinking = thinking
        self.prompts = prompts
        self.rerank = rerank
        self.grammars = grammars
        self.pieces = Pieces(tokenizer)

    @property
    def name(self) -> str:
        return self.names[0]

    def loaded(self) -> ModelInfo:
        """Facts about the model, also of one that sleeps. Raises EngineUnavailable while there is nothing to
        generate with."""
        info, state = self.engine.info, self.engine.state
        has_failed = state is EngineState.FAILED and not self._may_retry()
        if info is None or has_failed or state is EngineState.STOPPED:
            raise unavailable(self.engine.status())
        return info
