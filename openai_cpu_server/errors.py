"""Every failure with a name. They carry data; `http/errors.py` alone turns them into HTTP."""

from __future__ import annotations

from collections.abc import Sequence

UNLOADABLE = 72
"""Exit status of a process that cannot load llama.cpp: no input is to blame."""


class ServerError(Exception):
    """Base of all failures that the package raises on purpose."""


class StartupError(ServerError):
    """The server cannot start; the message is one line for the person at the terminal."""


class DeviceFailed(StartupError):
    """A device beside the CPU is full or fails; without it the start may succeed."""


class InvalidRequest(ServerError):
    """The client's request is wrong; `param` names the field, `code` is OpenAI's, if it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def wrong(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")


def wrong_value(param: str, expected: str) -> InvalidRequest:
    return wrong(f"Invalid value for '{param}': expected {expected}.", param)


def missing(param: str) -> InvalidRequest:
    message = f"Missing required parameter: '{param}'."
    return InvalidRequest(message, param=param, code="missing_required_parameter")


def unknown_parameter(name: str) -> InvalidRequest:
    return InvalidRequest(f"Unknown parameter: '{name[:64]}'.", param=name[:64], code="unknown_parameter")


class PromptTooLong(ServerError):
    """Prompt and requested output can never fit into the context, however long one waits."""

    def __init__(self, *, prompt_tokens: int, max_tokens: int, limit: int, param: str) -> None:
        super().__init__(
            # Clients look for the first words to tell this error from others.
            f"This model's maximum context length is {limit} tokens, but {prompt_tokens + max_tokens} were "
            f"asked for ({prompt_tokens} in the prompt, {max_tokens} for the output)."
        )
        self.tokens, self.limit = prompt_tokens, limit
        self.param = param


class PromptFarTooLong(InvalidRequest):
    """A text is so long that nobody needs its tokens to know that they do not fit."""

    code = "context_length_exceeded"

    def __init__(self, *, least_tokens: int, limit: int, param: str | None = None) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but at least {least_tokens} were asked "
            "for.",
            param=param,
            code=self.code,
        )
        self.tokens, self.limit = least_tokens, limit


class AdapterFailed(ServerError):
    """An adapter cannot be loaded: no adapter at all, or none for this model. The message is one line."""


class AdapterNotAllowed(ServerError):
    """A client may not have this file loaded."""


class PullFailed(ServerError):
    """A model did not come from the hub; the message says why in one line."""


class PullNotAllowed(ServerError):
    """The set of this server's models is not to be changed by clients."""

    def __init__(self) -> None:
        super().__init__("This server's models are named when it starts; start it with --allow-pull.")


class AdapterNotFound(ServerError):
    """No adapter of this name can be had for the model."""

    def __init__(
        self, name: str, known: Sequence[str], *, reason: str | None = None, param: str | None = None
    ) -> None:
        """`reason`: why it was refused, if it is known at all. `param`: the field that names it."""
        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
        why = f"could not be loaded: {reason}" if reason else f"does not exist for this model; {there}."
        super().__init__(f"The adapter '{name}' {why}")
        self.name = name
        self.param = param


class InputTooLong(ServerError):
    """A text to embed or to score has more tokens than the model takes."""

    def __init__(self, *, tokens: int, limit: int, param: str) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but '{param}' has {tokens}. "
            "Shorten it, or send 'truncate': true to have it cut."
        )
        self.tokens, self.limit = tokens, limit
        self.param = param


class WrongModelKind(ServerError):
    """The model that is asked for is there, but not for this."""

    def __init__(self, name: str, cannot: str, *, able: Sequence[str]) -> None:
        """`cannot`: a verb, such as `embed`. `able`: the names of models that the caller may use for it."""
        listed = ", ".join(f"'{other}'" for other in able)
        hint = f"On this server can: {listed}." if able else "No model of this server can."
        super().__init__(f"The model '{name}' cannot {cannot}. {hint}")
        self.name = name


class RouterNotModel(ServerError):
    """The model that is asked for is a router, which has no tokens, no memory and no vectors."""

    def __init__(self, name: str, targets: Sequence[str]) -> None:
        listed = ", ".join(f"'{target}'" for target in dict.fromkeys(targets))
        super().__init__(f"'{name}' is a router, and this needs a model: name one of {listed}.")
        self.name = name


class TemplateFailed(ServerError):
    """The chat template raised or cannot render these messages."""


class ModelNotFound(ServerError):
    """The request names a model that this server does not serve, or not for this caller."""

    def __init__(self, name: str | None, names: Sequence[str] = ()) -> None:
        """`name`: None if the client has named none. `names`: those that there are for the caller."""
        there_is = f" There is: {', '.join(names)}." if names else ""
        what = "There is no model" if name is None else f"The model '{name}' does not exist"
        super().__init__(f"{what} on this server{' for this key' if name is None else ''}.{there_is}")
        self.name = name


class ModelTooLarge(ServerError):
    """The model can never be loaded beside what must stay in memory, however long one waits."""


class ModelInUse(ServerError):
    """The model has requests, and is not unloaded under them."""

    def __init__(self, name: str, num_requests: int) -> None:
        super().__init__(
            f"The model '{name}' has {num_requests} requests that run or wait; unload it afterwards."
        )


class ModelNotLoaded(ServerError):
    """An administrator asked for a model to be loaded, and it cannot be."""


class RequestNotFound(ServerError):
    """No live request has this id: it has ended, or never was."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no live request '{name}'.")
        self.name = name


class RequestEnded(ServerError):
    """An answer that is to be controlled has ended, or is about to."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The answer '{name}' has ended.")


class NotThinking(ServerError):
    """An answer whose thoughts are to end has none, or has begun."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The answer '{name}' is not thinking, or its thoughts cannot be ended.")


class McpServerNotFound(ServerError):
    """There is no MCP server of this name, or the key may not use it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no MCP server '{name[:64]}' for you.")
        self.name = name


class Unauthorized(ServerError):
    """No API key, or a wrong one."""


class Forbidden(ServerError):
    """A right key, but not for this."""

    def __init__(self, scope: str, hint: str = "") -> None:
        said = f"You have insufficient permissions for this operation. Missing scopes: {scope}."
        super().__init__(f"{said} {hint}".strip())


class OriginRefused(ServerError):
    """A page of another origin called."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"Pages of {origin[:200]!r} may not call this server; see --cors-origin.")


class HostRefused(ServerError):
    """The request was sent to a name that is not this server's: a web page may have made it so."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server does not go by the name {host[:200]!r}: call it by its address, or name it with "
            "--allowed-host."
        )


class BodyTooSlow(ServerError):
    """The request's body did not come in time."""

    def __init__(self) -> None:
        super().__init__("The request body took too long to arrive.")


class TooManyConnections(ServerError):
    """The server holds as many connections as it may."""

    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("The server has too many connections; try again later.")


class TooManyWatchers(ServerError):
    """As many streams of events are open as may be, of this client or of all."""

    retry_after_s = 10

    def __init__(self) -> None:
        super().__init__("Too many streams of events are open; close one, or try again later.")


class RateLimited(ServerError):
    """A key has used up what it may; base of those below."""

    def __init__(self, said: str, *, retry_after_s: float | None) -> None:
        """`retry_after_s`: None if it can never fit."""
        again = "It can never fit." if retry_after_s is None else "Please try again later."
        super().__init__(f"Rate limit reached on {said}. {again}")
        self.retry_after_s = retry_after_s


class RequestsLimited(RateLimited):
    """Too many requests, over time or at once."""


class TokensLimited(RateLimited):
    """Too many tokens."""


class CulpritsLimited(RateLimited):
    """The engine has died too often of what this sender wants."""

    def __init__(self, limit: int, *, retry_after_s: float) -> None:
        super().__init__(f"requests that the engine dies of: Limit {limit}", retry_after_s=retry_after_s)


class BodyTooLarge(ServerError):
    """The request's body exceeds the server's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")
        self.limit = limit


class EncodingNotSupported(ServerError):
    """The request's body is encoded in a way that the server does not read."""

    READ = "gzip, deflate"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"The content encoding {encoding!r} is none of: {self.READ}.")


class TooManyValues(ServerError):
    """The request's body has more values than anybody should have to parse at once."""

    def __init__(self, most: str) -> None:
        super().__init__(f"The request body has more than {most}; send several smaller requests.")


class BodiesFull(ServerError):
    """The bodies that are being read hold as much memory as they may."""

    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("The server is reading too many large request bodies; try again later.")


class QueueFull(ServerError):
    """Too many requests of this priority wait already."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again later.")
        self.retry_after_s = retry_after_s


class EngineUnavailable(ServerError):
    """The engine is loading, or gone for good; nothing can be accepted now."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GenerationFailed(ServerError):
    """An accepted request ended with an error of ours.

    `may_retry`: it had no part in that. Otherwise it may be what the engine dies of, every time.
    """

    def __init__(self, message: str, *, may_retry: bool = False) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class ConstraintFailed(ServerError):
    """One request's output cannot be held to its grammar: broken, too complex, or the model has no end."""


class RequestCancelled(ServerError):
    """An accepted request was ended by somebody other than its client."""


class DeadlineExceeded(ServerError):
    """An accepted request was not done in the time that it or the server allows."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request was not done within {timeout_s:g} seconds.")


class ReaderTooSlow(ServerError):
    """A client does not take what its request brings, and nothing more is kept for it."""

    def __init__(self) -> None:
        super().__init__("The client reads too slowly: the request was ended.")


class EmbeddingFailed(ServerError):
    """llama.cpp could not compute the inputs of a step, or what came of it are no numbers."""


class DeadlyInput(InvalidRequest):
    """The process that reads a client's text died of it each time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unreadable_input")


class ReaderLost(ServerError):
    """The process that read a client's text was killed, and so was the next one; the text is not to blame."""


class NativePanic(ServerError):
    """Native code gave up on one request, such as a grammar that it cannot read."""


class AnswersUnavailable(ServerError):
    """The cache of answers could not be emptied: some may still be told."""

    retry_after_s = 10.0

    def __init__(self) -> None:
        super().__init__("The cache of answers is out of order and was not emptied; try again later.")


class JobsUnavailable(ServerError):
    """The jobs database cannot be reached, or cannot write."""

    retry_after_s = 10.0

    def __init__(self, reason: str) -> None:
        """`reason`: one line, which is for the log alone."""
        super().__init__("The database of files and batches is out of order; try again later.")
        self.reason = reason


class StorageFull(ServerError):
    """A key has stored as much as it may: its files, results of its batches, and its responses."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"Storage quota reached on {said}. Delete files or responses, or send 'store': false."
        )


class DiskFull(ServerError):
    """The disk with the database has too little room left, so that nothing more is stored."""

    retry_after_s = 60.0

    def __init__(self) -> None:
        super().__init__("The disk of this server is nearly full: nothing more is stored for now.")


class JobObjectNotFound(ServerError):
    """This caller has no file or batch of that id."""

    def __init__(self, message: str, *, param: str = "id") -> None:
        super().__init__(message)
        self.param = param


class FileInUse(ServerError):
    """A batch that has not ended reads this file."""

    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(f"The file '{file_id}' is the input of batch '{batch_id}', which has not ended.")


class BatchConflict(ServerError):
    """The batch is in a state that does not allow this."""
