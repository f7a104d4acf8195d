"""Exceptions that the package raises on purpose. They carry data; `http/errors.py` alone translates them into
HTTP."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Sequence

_PACKAGE = "openai-cpu-server"
UNLOADABLE = 72
"""Exit status of a process that cannot load llama.cpp."""


class ServerError(Exception):
    """Base of all exceptions that the package raises on purpose. Its message may be shown to a client."""

    text = ""

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        """`param`: field that is wrong."""
        super().__init__(self.text if message is None else message)
        self.param = param


class StartupError(ServerError):
    """The server cannot start. The message is one line for the terminal."""


class MissingExtra(StartupError):
    """An optional part is not installed. The message ends with the command that installs it here."""

    def __init__(self, what: str, extra: str) -> None:
        import importlib.metadata  # it takes longer than all imports of this module

        wanted: list[str] = []
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.requires(_PACKAGE) or []
            wanted = [each.partition(";")[0] for each in found if re.search(rf"extra == .{extra}.$", each)]
        command = shlex.join([sys.executable, "-m", "pip", "install", *(wanted or [f"{_PACKAGE}[{extra}]"])])
        super().__init__(f"{what}: {command}")


class DeviceFailed(StartupError):
    """A device beside the CPU is full or fails; the start may succeed without it."""


class InvalidRequest(ServerError):
    """The client's request is wrong. `param` names the field; `code` is OpenAI's, if there is one."""

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code or self.code


def wrong(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")


def wrong_value(param: str, expected: str) -> InvalidRequest:
    return wrong(f"Invalid value for '{param}': expected {expected}.", param)


def missing(param: str) -> InvalidRequest:
    message = f"Missing required parameter: '{param}'."
    return InvalidRequest(message, param=param, code="missing_required_parameter")


_MOST_SHOWN = 64


def shown(name: str) -> str:
    """Return the part of a client's name that an error repeats."""
    return name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..."


def unknown_parameter(name: str) -> InvalidRequest:
    return InvalidRequest(f"Unknown parameter: '{name[:64]}'.", param=name[:64], code="unknown_parameter")


class PromptTooLong(ServerError):
    """Prompt and requested output can never fit into the context."""

    def __init__(self, *, prompt_tokens: int, max_tokens: int, limit: int, param: str) -> None:
        super().__init__(
            # Clients recognise this error by its first words.
            f"This model's maximum context length is {limit} tokens, but {prompt_tokens + max_tokens} were "
            f"asked for ({prompt_tokens} in the prompt, {max_tokens} for the output).",
            param=param,
        )
        self.tokens, self.limit = prompt_tokens, limit


class PromptFarTooLong(InvalidRequest):
    """A text is so long that it need not be tokenized to be rejected."""

    code = "context_length_exceeded"

    def __init__(self, *, least_tokens: int, limit: int, param: str | None = None) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but at least {least_tokens} were asked "
            "for.",
            param=param,
        )
        self.tokens, self.limit = least_tokens, limit


class AdapterFailed(ServerError):
    """An adapter cannot be loaded, or does not belong to this model. The message is one line."""


class AdapterNotAllowed(ServerError):
    """A client may not load this file."""


class PullFailed(ServerError):
    """A model could not be downloaded. The message is one line."""


class PullNotAllowed(ServerError):
    """Clients may not change the set of models."""

    text = "This server cannot change its models while it runs; start it with --allow-pull."


class AdapterNotFound(ServerError):
    """The model has no adapter of this name."""

    def __init__(
        self, name: str, usable: Sequence[str], *, reason: str | None = None, param: str | None = None
    ) -> None:
        """`reason`: why the adapter was rejected, or None if it is unknown."""
        there = "it has none, and is requested by its name alone"
        if usable:
            there = f"it has {', '.join(sorted(usable))}"
        why = f"could not be loaded: {reason}" if reason else f"does not exist for this model; {there}."
        super().__init__(f"The adapter '{shown(name)}' {why}", param=param)


class InputTooLong(ServerError):
    """A text to embed or to score has more tokens than the model takes."""

    def __init__(self, *, tokens: int, limit: int, param: str) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but '{param}' has {tokens}. "
            "Shorten it, or send 'truncate': true to have it cut.",
            param=param,
        )
        self.tokens, self.limit = tokens, limit


class WrongModelKind(ServerError):
    """The requested model exists but cannot do this."""

    def __init__(self, name: str, cannot: str, *, able: Sequence[str]) -> None:
        """`cannot`: a verb, such as `embed`. `able`: models that the caller may use."""
        listed = ", ".join(f"'{other}'" for other in able)
        hint = f"Models that can: {listed}." if able else "No model of this server can."
        super().__init__(f"The model '{name}' cannot {cannot}. {hint}")


class RouterNotModel(ServerError):
    """The requested model is a router, which has no tokens, memory or vectors of its own."""

    def __init__(self, name: str, targets: Sequence[str]) -> None:
        listed = ", ".join(f"'{target}'" for target in dict.fromkeys(targets))
        hint = f": name one of {listed}" if listed else ""
        super().__init__(f"'{name}' is a router, and this needs a model{hint}.")


class TemplateFailed(ServerError):
    """The chat template raised an error or cannot render these messages."""


class ModelNotFound(ServerError):
    """The requested model is not served, or not to this caller."""

    def __init__(self, name: str | None, names: Sequence[str] = ()) -> None:
        """`name`: None if the client named no model. `names`: those that the caller may use."""
        models = f" The models are: {', '.join(names)}." if names else ""
        what = "There is no model" if name is None else f"The model '{shown(name)}' does not exist"
        super().__init__(f"{what} on this server{' for this key' if name is None else ''}.{models}")


class ModelTooLarge(ServerError):
    """The model can never be loaded beside the models that stay in memory."""


class ModelInUse(ServerError):
    """The model has requests and is not unloaded."""

    def __init__(self, name: str, num_requests: int) -> None:
        super().__init__(
            f"The model '{name}' has {num_requests} requests that run or wait; unload it afterwards."
        )


class ModelNotLoaded(ServerError):
    """Loading a model on an administrator's request has failed."""


class RequestNotFound(ServerError):
    """A live request with this id does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no live request '{shown(name)}'.")


class RequestEnded(ServerError):
    """The response to be controlled has ended, or is about to."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The answer '{shown(name)}' has ended.")


class NotThinking(ServerError):
    """The response has no reasoning to end, or its text has begun."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The answer '{shown(name)}' is not thinking, or its thoughts cannot be ended.")


class McpServerNotFound(ServerError):
    """An MCP server of this name does not exist, or the key may not use it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no MCP server '{name[:64]}' for you.")


class Unauthorized(ServerError):
    """The API key is missing or wrong."""


class Forbidden(ServerError):
    """The API key is valid but lacks this permission."""

    def __init__(self, scope: str, hint: str = "") -> None:
        lack = f"You have insufficient permissions for this operation. Missing scopes: {scope}."
        super().__init__(f"{lack} {hint}".strip())


class OriginRefused(ServerError):
    """A page of another origin sent the request."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"Pages of {origin[:200]!r} may not call this server; see --cors-origin.")


class HostRefused(ServerError):
    """The Host header names another server, which may be DNS rebinding by a web page."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"The name {host[:200]!r} is unknown to this server: call it by its address, or name it with "
            "--allowed-host."
        )


class BodyTooSlow(ServerError):
    """The request's body did not arrive in time."""

    text = "The request body took too long to arrive."


class TooManyConnections(ServerError):
    """The server holds its maximum number of connections."""

    retry_after_s = 1
    text = "The server has too many connections; try again later."


class TooManyWatchers(ServerError):
    """The client or the server has its maximum number of event streams."""

    retry_after_s = 10
    text = "Too many streams of events are open; close one, or try again later."


class RateLimited(ServerError):
    """A key has exhausted a limit. Base of the exceptions for each limit."""

    def __init__(self, limit: str, *, retry_after_s: float | None) -> None:
        """`retry_after_s`: None if the request can never fit."""
        again = "It can never fit." if retry_after_s is None else "Please try again later."
        super().__init__(f"Rate limit reached on {limit}. {again}")
        self.retry_after_s = retry_after_s


class RequestsLimited(RateLimited):
    """Too many requests, over time or at once."""


class TokensLimited(RateLimited):
    """Too many tokens."""


class CulpritsLimited(RateLimited):
    """The engine has crashed too often because of this caller's requests."""

    def __init__(self, limit: int, *, retry_after_s: float) -> None:
        super().__init__(f"requests that crash the engine: Limit {limit}", retry_after_s=retry_after_s)


class BodyTooLarge(ServerError):
    """The request's body exceeds the server's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")


class EncodingNotSupported(ServerError):
    """The request's Content-Encoding is not supported."""

    READ = "gzip, deflate"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"The content encoding {encoding!r} is not supported; supported are: {self.READ}.")


class TooManyValues(ServerError):
    """The request's body has more JSON values than the server parses at once."""

    def __init__(self, most: str) -> None:
        super().__init__(f"The request body has more than {most}; send several smaller requests.")


class BodiesFull(ServerError):
    """Request bodies in memory have reached their limit."""

    retry_after_s = 1
    text = "The server is reading too many large request bodies; try again later."


class QueueFull(ServerError):
    """Too many requests of this priority are waiting."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again later.")
        self.retry_after_s = retry_after_s


class EngineUnavailable(ServerError):
    """The engine is loading or has failed, so that it accepts no requests."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GenerationFailed(ServerError):
    """An accepted request ended with an error of the server. `may_retry` is False if the request may have
    caused it."""

    def __init__(self, message: str, *, may_retry: bool = False) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class ConstraintFailed(ServerError):
    """The output cannot be held to its grammar: the grammar is broken or too complex, or the model has no
    end token. `param` names the field with the grammar where it is known."""


class RequestCancelled(ServerError):
    """An accepted request was cancelled, but not by its client."""


class DeadlineExceeded(ServerError):
    """An accepted request was not finished within its deadline."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request was not finished within {timeout_s:g} seconds.")


class ReaderTooSlow(ServerError):
    """A client does not read its response, whose buffer is full."""

    text = "The client reads too slowly: the request was ended."


class EmbeddingFailed(ServerError):
    """llama.cpp could not compute a step's inputs, or returned values that are not numbers."""


class DeadlyInput(InvalidRequest):
    """The client's text killed each process that read it."""

    code = "unreadable_input"


class ReaderLost(ServerError):
    """The processes that read a client's text were killed from outside; the text is not to blame."""


class NativePanic(ServerError):
    """Native code gave up on one request, such as a grammar that it cannot read."""


class AnswersUnavailable(ServerError):
    """The answer cache could not be emptied, so that it may still serve entries."""

    retry_after_s = 10.0
    text = "The cache of answers is unavailable and was not emptied; try again later."


class JobsUnavailable(ServerError):
    """The jobs database cannot be reached or written."""

    retry_after_s = 10.0

    def __init__(self, reason: str) -> None:
        """`reason`: one line for the log, not for clients."""
        super().__init__("The database of files and batches is unavailable; try again later.")
        self.reason = reason


class StorageFull(ServerError):
    """A key's files, batch results and responses have reached its storage limit."""

    def __init__(self, quota: str) -> None:
        super().__init__(
            f"Storage quota reached on {quota}. Delete files or responses, or send 'store': false."
        )


class DiskFull(ServerError):
    """The database's disk has too little free space."""

    retry_after_s = 60.0
    text = "The disk of this server is nearly full, so it stores nothing more for now."


class JobObjectNotFound(ServerError):
    """The caller has no file or batch of this id."""

    def __init__(self, message: str, *, param: str = "id") -> None:
        super().__init__(message, param=param)


class FileInUse(ServerError):
    """An unfinished batch reads this file."""

    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(f"The file '{file_id}' is the input of batch '{batch_id}', which has not ended.")


class BatchConflict(ServerError):
    """The batch is in a state that does not allow this."""
