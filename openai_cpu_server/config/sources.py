"""Sources of options.

An empty value counts as unset, because `${NAME}` of a missing variable leaves one. An option that protects
the server rejects it: a missing secret must not start a server without keys.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SecretsSettingsSource, TomlConfigSettingsSource
from pydantic_settings.sources import PydanticBaseEnvSettingsSource

from openai_cpu_server.config.folders import require_utf8
from openai_cpu_server.errors import StartupError

ENV_PREFIX = "OCS_"
SECRETS_VARIABLE = "OCS_SECRETS_DIR"
"""Folder of files named like variables, for secrets of Docker and Kubernetes: anyone who may inspect a
container sees its environment."""
_GUARDS = {
    "api_key",
    "api_keys",
    "config",
    "limits_url",
    "secrets_dir",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_keyfile_password",
    "trusted_proxy",
}
"""Options that restrict access, or name a file of them."""
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
_OF_KUBERNETES = re.compile(
    r"PORT(_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)?|SERVICE_HOST|SERVICE_PORT(_\w+)?"
)
"""Kubernetes' variables for a Service named `ocs`, without the prefix."""
_OF_SCRIPTS = {"GPU", "SECRETS_DIR", "WITH"}
_HINT = (
    "; Kubernetes sets it where there is a Service named ocs: set enableServiceLinks to false in the pod, "
    "or give the option itself"
)


class _ByName(PydanticBaseEnvSettingsSource):
    """Names the origin of an invalid value."""

    def origin(self, field_name: str) -> str:
        return variable(field_name)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)  # type: ignore[safe-super]
        return set_value(field_name, value, self.origin(field_name)), key, is_complex

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool
    ) -> Any:
        try:
            return super().prepare_field_value(field_name, field, value, value_is_complex)
        except ValueError:
            expected = f'expected a list in JSON, such as ["a", "b"] (from {self.origin(field_name)})'
            raise StartupError(f"{option(field_name)}: {expected}") from None


class EnvironmentVariables(_ByName, EnvSettingsSource): ...


class SecretFiles(_ByName, SecretsSettingsSource):
    def __init__(self, settings: type[BaseSettings]) -> None:
        super().__init__(settings, secrets_dir=secrets_folder())

    def origin(self, field_name: str) -> str:
        return str(_secret(field_name))

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        try:
            return super().get_field_value(field, field_name)
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"cannot read {_secret(field_name)}: {error}") from None


class ConfigFile(TomlConfigSettingsSource):
    def __init__(self, settings: type[BaseSettings]) -> None:
        path = settings.model_config.get("toml_file")
        try:
            super().__init__(settings)
        except (OSError, ValueError) as error:
            raise StartupError(f"cannot read {path}: {error}") from None
        self._path = path

    def __call__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__call__().items()
            if set_value(name, value, f"{name} in {self._path}") is not None
        }


_MOST_CHARS = 65_536


def set_value(name: str, value: Any, origin: str) -> Any:
    """Return None if the value counts as unset. Raises StartupError that names the origin."""
    for text in _texts(value):
        if len(text) > _MOST_CHARS:
            raise StartupError(f"{origin} has {len(text)} characters, and may have {_MOST_CHARS}")
        require_utf8(text, origin)
    if not isinstance(value, str):
        return value
    if not (text := value.strip()):
        if name in _GUARDS:
            raise StartupError(f"{origin} is empty: remove it to start without {option(name)}")
        return None
    if min(text) < " " and text[0] not in "[{":  # tables and lists in variables are JSON
        raise StartupError(f"{origin} has control characters")
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(item)


def without_empty_values(arguments: Sequence[str]) -> list[str]:
    remaining: list[str] = []
    rest = list(arguments)
    while rest:
        # An empty argument can only be the value of the option before it.
        is_pair = rest[0].startswith("--") and "=" not in rest[0] and not "".join(rest[1:2]).strip()
        parts, rest = (rest[:2], rest[2:]) if is_pair else (rest[:1], rest[1:])
        name, sign, value = "=".join(parts).partition("=")
        is_option = name.startswith("--") and sign
        if not is_option or set_value(name.removeprefix("--").replace("-", "_"), value, name) is not None:
            remaining += parts
    return remaining


def option_source(name: str, arguments: Sequence[str], config: Path | None) -> str:
    """Return an option's source for an error line, or "" for the command line."""
    if named_by(name, arguments):
        return ""
    variables = {name.upper(): value for name, value in os.environ.items()}  # their names count in any case
    if (value := variables.get(variable(name), "")).strip():
        return f" (from {variable(name)}{_HINT if _SERVICE_LINK.match(value) else ''})"
    if (path := _secret(name)) is not None and path.is_file():
        return f" (from {path})"
    return f" (from {config})" if config is not None else ""


def named_by(name: str, arguments: Sequence[str]) -> str | None:
    """Return the first argument that sets this option. A switch has two names."""
    names = (option(name), option(f"no_{name}"))
    arguments = [argument.partition("=")[0] for argument in arguments]
    return next((argument for argument in arguments if argument in names), None)


def secrets_folder() -> Path | None:
    folder = set_value("secrets_dir", os.environ.get(SECRETS_VARIABLE), SECRETS_VARIABLE)
    if folder is not None and not Path(folder).is_dir():
        raise StartupError(f"{SECRETS_VARIABLE}: the folder {folder} does not exist")
    return Path(folder) if folder is not None else None


def reject_unknown(options: Collection[str]) -> None:
    """Reject unknown `OCS_` variables and secret files; a misspelt key would open the server."""
    files = [path.name for path in folder.iterdir()] if (folder := secrets_folder()) is not None else []
    names = {name.upper() for name in options} | _OF_SCRIPTS
    guards = {name.upper() for name in _GUARDS}
    for name, is_file in (*((name, False) for name in os.environ), *((name, True) for name in files)):
        words = re.sub("[-.]", "_", name.upper())  # Kubernetes permits them in names of secrets
        rest = words.removeprefix(ENV_PREFIX)
        is_meant = words != rest or (is_file and words in guards)
        is_read = name.upper() == ENV_PREFIX + rest and rest in names
        if not is_meant or is_read or _OF_KUBERNETES.fullmatch(rest):
            continue
        close = difflib.get_close_matches(rest, names, n=1)
        guess = f": did you mean {ENV_PREFIX}{close[0]}?" if close else ""
        raise StartupError(f"{name} is not an option of this server{guess}")


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _secret(name: str) -> Path | None:
    folder = secrets_folder()
    wanted = variable(name).lower()
    return next((path for path in folder.iterdir() if path.name.lower() == wanted), None) if folder else None
