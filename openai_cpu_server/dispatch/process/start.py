"""How far the start of an engine process has come, as it says itself."""

from __future__ import annotations

import logging

from openai_cpu_server.contract.messages import Loading, LoadingPhase
from openai_cpu_server.dispatch.death import Death

logger = logging.getLogger(__name__)


class Start:
    """Shares of the work, 0 to 1, as of the last process that told them."""

    def __init__(self, model_path: str) -> None:
        self.loaded = 0.0
        self.timed: float | None = None
        """None: the timing of steps has not begun, or is not needed."""
        self._model_path = model_path

    def heard(self, event: Loading) -> bool:
        """Whether a further tenth of the model is loaded."""
        if event.phase is LoadingPhase.COSTS:
            self.timed = event.fraction
            return False
        is_news = int(10 * event.fraction) > int(10 * self.loaded)
        if int(4 * event.fraction) > int(4 * self.loaded):
            logger.info("loading %s: %.0f %%", self._model_path, 100 * event.fraction)
        self.loaded = event.fraction
        return is_news

    def failure(self, death: Death) -> str:
        """Why the server cannot start, where the first process has died."""
        if self.timed is None:
            return f"the model could not be loaded: {death.message}"
        return f"{death.message} while it timed steps (--calibrate never leaves that out)"
