"""Describes what went wrong with the hub, in one line that says what to do."""

from __future__ import annotations

from urllib.parse import unquote

from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

# The hub's library has changed its HTTP library twice; this is the base of its errors, whichever it is.
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]

from openai_cpu_server.model_source.hub_name import HubName

_BEFORE_FILE = "/resolve/main/"
_AUTHENTICATE = "set HF_TOKEN to a token that may read it"


def one_line(error: Exception, name: HubName) -> str:
    what = f"{name.repo}/{name.file}" if name.file else name.repo
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, and {what} is not in the cache ({HF_HUB_CACHE})"
    if isinstance(error, LocalEntryNotFoundError):
        return f"the connection to {ENDPOINT} broke, and {what} is not in the cache ({HF_HUB_CACHE})"
    if isinstance(error, HfHubHTTPError):
        return _answer(error, name, what)
    if isinstance(error, HFValidationError):
        return f"{name.repo} cannot be a repository: {_first_line(error)}"
    if isinstance(error, TransportError):
        return f"the connection to {ENDPOINT} for {what} failed: {_first_line(error)}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot store {what} in {HF_HUB_CACHE}: {error.strerror}"
    return f"cannot fetch {what}: {_first_line(error)}"


def _answer(error: HfHubHTTPError, name: HubName, what: str) -> str:
    """A line for a refusal by the hub, which could be reached."""
    status = error.response.status_code
    if isinstance(error, EntryNotFoundError):
        return f"{name.repo} has no file {unquote(str(error.response.url)).partition(_BEFORE_FILE)[2]}"
    if isinstance(error, GatedRepoError):
        return f"{name.repo} is gated: accept its terms on the hub, then {_AUTHENTICATE}"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no repository {name.repo} on {ENDPOINT}, or it is private (then {_AUTHENTICATE})"
    if status in (401, 403):
        return f"{ENDPOINT} denies access to {what} ({status}): {_AUTHENTICATE}"
    return f"{ENDPOINT} answered {status} for {what}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
