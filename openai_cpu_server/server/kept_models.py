"""Models that were pulled and names that were derived at run time, stored for the next start."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.models.presets import Preset
from openai_cpu_server.storage.private_files import replacing

logger = logging.getLogger(__name__)


class PulledModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Name by which it was requested and is served."""
    source: str
    """`hf:OWNER/REPO/FILE`."""
    path: str
    projector: str | None = None


class KeptModels(msgspec.Struct, frozen=True, kw_only=True):
    pulled: tuple[PulledModel, ...] = ()
    presets: dict[str, Preset] = {}

    @classmethod
    def read(cls, path: Path) -> KeptModels:
        """Read the file, without models whose files have gone. A missing file is empty. Raises
        StartupError."""
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.MsgspecError) as error:
            raise StartupError(f"cannot read {path}, where --allow-pull keeps its models: {error}") from None
        gone = [model for model in kept.pulled if not Path(model.path).is_file()]
        for model in gone:
            logger.warning("%s is not served any more: %s has gone", model.name, model.path)
        return msgspec.structs.replace(kept, pulled=tuple(one for one in kept.pulled if one not in gone))

    def write(self, path: Path) -> None:
        """Write the file atomically. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2))

    def named(self, name: str) -> PulledModel | None:
        return next((model for model in self.pulled if model.name == name), None)

    def with_pulled(self, model: PulledModel) -> KeptModels:
        others = (one for one in self.pulled if one.name != model.name)
        return msgspec.structs.replace(self, pulled=(*others, model))

    def without(self, name: str) -> KeptModels:
        return KeptModels(
            pulled=tuple(one for one in self.pulled if one.name != name),
            presets={key: preset for key, preset in self.presets.items() if key != name},
        )

    def with_preset(self, name: str, preset: Preset) -> KeptModels:
        return msgspec.structs.replace(self, presets={**self.presets, name: preset})
