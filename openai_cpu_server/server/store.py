"""Changes of models at run time: pulled, removed and derived by administrators, or served on request from
`--models-dir`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.pull import PullError, PullStep
from openai_cpu_server.errors import (
    InvalidRequest,
    ModelNotFound,
    ModelNotLoaded,
    PullFailed,
    StartupError,
    wrong,
)
from openai_cpu_server.model_source.folder import FileState, FolderModel, ModelFolder
from openai_cpu_server.model_source.resolve import hub_name
from openai_cpu_server.models.registry import LATEST, AvailableModel, ChosenModel, Preset, ensure_served
from openai_cpu_server.server.fleet import ModelFleet
from openai_cpu_server.server.plans import (
    ModelPlan,
    PulledModel,
    StoredModels,
    models_folder,
    plan_in_folder,
    plan_of_pulled,
    stored_models_file,
)

logger = logging.getLogger(__name__)

_KEEP_FREE_MB = 2048
_PULL = ("-m", "openai_cpu_server", "pull", "--json", "--keep-free", str(_KEEP_FREE_MB))
_REMOVE = ("-m", "openai_cpu_server", "rm")
"""Prefixes of own processes, because hashing takes time and the hub's library memory."""
_MOST_NAMES = 1000
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+-]{0,255}")
_LINE_BYTES = 1 << 16


class _Pull:
    """Running pull, cancelled with its last listener."""

    def __init__(self, work: Callable[[Callable[[PullStep], None]], Awaitable[None]]) -> None:
        self._listeners: set[asyncio.Queue[PullStep | None]] = set()
        self._last = PullStep(status="asking")
        self.task = asyncio.ensure_future(work(self._emit))
        self.task.add_done_callback(lambda _: self._emit(None))

    async def listen(self) -> AsyncIterator[PullStep]:
        """Yield progress from now on. Raises PullFailed, ModelNotLoaded."""
        queue: asyncio.Queue[PullStep | None] = asyncio.Queue()
        self._listeners.add(queue)
        queue.put_nowait(self._last)
        if self.task.done():
            queue.put_nowait(None)
        try:
            while (step := await queue.get()) is not None:
                yield step
            self.task.result()
        finally:
            self._listeners.discard(queue)
            if not self._listeners:
                self.task.cancel()

    def _emit(self, step: PullStep | None) -> None:
        """`step`: None for the end."""
        self._last = step or self._last
        for queue in self._listeners:
            queue.put_nowait(step)


class FleetStore:
    """Changes, stored for the next start. Methods belong to the event loop's thread."""

    def __init__(self, settings: Settings, fleet: ModelFleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._models = fleet.registry
        self._file = stored_models_file()
        self._stored = StoredModels.read(self._file)
        self._pulls: dict[str, _Pull] = {}
        for name, preset in self._stored.presets.items():
            with contextlib.suppress(InvalidRequest):  # a name that is taken by a model now
                self._models.derive(name, preset)

    async def pull(self, name: str) -> AsyncIterator[PullStep]:
        """Yield progress until the model is served. A second caller joins; without listeners the pull is
        cancelled, and its data stays. Raises PullFailed, ModelNotLoaded."""
        name = _bare(name)
        await ensure_served(self._models, name, None)
        if self._models.has(name):
            yield PullStep(status="success", name=name)
            return
        pull = self._pulls.get(name)
        if pull is None or pull.task.done():
            pull = self._pulls[name] = _Pull(lambda emit: self._pulled(name, emit))
        async for step in pull.listen():
            yield step

    async def remove(self, name: str) -> None:
        """Remove a pulled model or derived name. Raises ModelNotFound, ModelInUse, and InvalidRequest for
        others."""
        name = _bare(name)
        if name in self._stored.presets:
            self._models.forget_preset(name)
            self._store(presets={key: one for key, one in self._stored.presets.items() if key != name})
            return
        pulled = next((model for model in self._stored.pulled if model.name == name), None)
        if pulled is None:
            raise InvalidRequest(f"'{self._choose(name).name}' was not pulled, so it cannot be removed.")
        made = [key for key, preset in self._stored.presets.items() if preset.base == name]
        if made:
            raise InvalidRequest(f"'{made[0]}' is derived from '{name}': remove '{made[0]}' first.")
        await self._fleet.remove(self._choose(name).model)
        self._store(pulled=tuple(model for model in self._stored.pulled if model.name != name))
        if all(model.path != pulled.path for model in self._stored.pulled):
            process = await asyncio.create_subprocess_exec(
                sys.executable, *_REMOVE, pulled.source, stdin=DEVNULL, stderr=PIPE
            )
            _, errors = await process.communicate()
            if process.returncode:  # logged only, because the model is no longer served in any case
                logger.warning("%s", errors.decode(errors="replace").strip())

    async def derive(self, name: str, preset: Preset) -> None:
        """Define a lasting name. Raises ModelNotFound, and InvalidRequest if a model has it."""
        name = _bare(name)
        if not _NAME.fullmatch(name):
            raise wrong(f"'{name}' is not a valid model name.", "model")
        if name not in self._stored.presets and len(self._stored.presets) >= _MOST_NAMES:
            raise InvalidRequest(f"The server has {_MOST_NAMES} names already: remove some first.")
        await ensure_served(self._models, _bare(preset.base), None)
        base = self._choose(_bare(preset.base))
        preset = msgspec.structs.replace(preset, base=base.name)
        if base.preset is not None:
            preset = preset.over(base.preset)
        self._models.derive(name, preset)
        self._store(presets={**self._stored.presets, name: preset})

    # -- inside -------------------------------------------------------------------------------------------

    def _choose(self, name: str) -> ChosenModel:
        if not self._models.has(name):
            raise ModelNotFound(name, self._models.names(None))
        return self._models.choose(name, None)

    async def _pulled(self, name: str, emit: Callable[[PullStep], None]) -> None:
        done: PullStep | None = None
        async for step in _fetching(_source(name)):
            if step.status == "success":
                done = step
            elif step.status != "asking":  # it is the first step of every pull
                emit(step)
        if done is None or done.path is None or done.name is None:
            raise PullFailed(f"Fetching '{name}' ended without a message; see the server's log.")
        pulled = PulledModel(name=name, source=done.name, path=done.path, projector=done.projector)
        await self._fleet.add(plan_of_pulled(pulled, self._settings))
        others = (model for model in self._stored.pulled if model.name != name)
        self._store(pulled=(*others, pulled))
        logger.info("%s was downloaded from the hub, and is served: %s", name, done.path)
        emit(msgspec.structs.replace(done, path=None, projector=None))

    def _store(self, **changes: object) -> None:
        self._stored = msgspec.structs.replace(self._stored, **changes)
        try:
            self._stored.write(self._file)
        except OSError as error:
            logger.error("the next start will not have this change: cannot write %s: %s", self._file, error)


def _bare(name: str) -> str:
    return name.removesuffix(f":{LATEST}")


_WITH_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)+/(?P<repo>[^/:\s]+/[^/:\s]+(?::[\w.-]+)?)")


def _source(name: str) -> str:
    """Return `pull`'s argument, without the host of Ollama's `HOST/OWNER/REPO:QUANT`. Rejects local files."""
    match = _WITH_HOST.fullmatch(name)
    source = f"hf:{match['repo']}" if match else name
    try:
        found = hub_name(source)
    except StartupError as error:
        raise PullFailed(f"{error}.") from None
    if found is None:
        raise PullFailed(
            f"The model '{name}' is unknown: use hf:OWNER/REPO[:QUANT], or a name that "
            "`openai-cpu-server models` lists."
        )
    return source


async def _fetching(source: str) -> AsyncIterator[PullStep]:
    """End the process with its listener."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *_PULL, "--", source, stdout=PIPE, stdin=DEVNULL, stderr=DEVNULL, limit=_LINE_BYTES
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            fields = msgspec.json.decode(line)
            if "error" in fields:
                error = msgspec.convert(fields, PullError).error
                raise PullFailed(f"{error[:1].upper()}{error[1:]}.")
            yield msgspec.convert(fields, PullStep)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        raise
    finally:
        await process.wait()


_LOOK_S = 0.5
"""Least time between two scans for unknown names."""


class ModelDir:
    """`ModelCatalog` of a folder, for the event loop's thread."""

    def __init__(self, settings: Settings, plans: Sequence[ModelPlan], fleet: ModelFleet) -> None:
        self._settings = settings
        self._fleet = fleet
        names = [name for plan in plans for name in plan.names]
        self._folder = ModelFolder(
            models_folder(settings),
            taken=[*names, *fleet.registry.router_names(None)],
            served=[plan.path for plan in plans],
        )
        self._there: dict[str, FolderModel] = {}
        self._looked_s = float("-inf")
        self._looking = asyncio.Lock()
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[FileState, str]] = {}
        """Unreadable files with the reason."""
        self._served: dict[str, Path] = {}

    @property
    def available(self) -> Sequence[AvailableModel]:
        return [
            AvailableModel(
                name=model.name,
                num_bytes=model.state.num_bytes,
                changed_s=int(model.state.changed_s),
                why_not=self._why_not(model),
                kind=None if isinstance(model.facts, str) else model.facts.kind,
                architecture="" if isinstance(model.facts, str) else model.facts.architecture,
                quantisation=None if isinstance(model.facts, str) else model.facts.quantisation,
            )
            for model in self._there.values()
            if not self._fleet.registry.has(model.name)
        ]

    async def look(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked_s < _LOOK_S:
                return
            found = await asyncio.to_thread(self._folder.look)
            self._there = {one.name: one for one in found}
            self._looked_s = time.monotonic()
            for name, path in list(self._served.items()):
                if not path.is_file():
                    del self._served[name]
                    logger.info("%s is no longer served: %s was removed", name, path)
                    await self._fleet.dismiss(name)

    async def bring(self, name: str) -> None:
        """Keep loading for others if a caller is cancelled."""
        if self._fleet.registry.has(name):
            return
        if name not in self._coming:
            self._coming[name] = asyncio.create_task(self._bring(self._there[name]))
            self._coming[name].add_done_callback(lambda _: self._coming.pop(name))
        await asyncio.shield(self._coming[name])

    async def _bring(self, model: FolderModel) -> None:
        if (why := self._why_not(model)) is not None:
            raise ModelNotLoaded(f"The model '{model.name}' is not served: {why}")
        try:
            plan = await asyncio.to_thread(plan_in_folder, model.name, model.path, self._settings)
            await self._fleet.add(plan)
        except (ModelNotLoaded, StartupError) as error:
            self._refused[model.name] = model.state, str(error)
            raise ModelNotLoaded(str(error)) from None
        self._served[model.name] = model.path
        logger.info("%s is served from now on: %s", model.name, model.path)

    def _why_not(self, model: FolderModel) -> str | None:
        if isinstance(model.facts, str):
            return model.facts
        state, why = self._refused.get(model.name, (None, ""))
        return why if state == model.state else None
