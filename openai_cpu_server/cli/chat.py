"""`openai-cpu-server chat`: a conversation with a running server or its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from openai_cpu_server.child_processes.signals import die_with_parent
from openai_cpu_server.cli.client import ServerClient, add_server_options
from openai_cpu_server.cli.plain_text import say
from openai_cpu_server.config.command_line import CommandParser, words_and_options
from openai_cpu_server.config.folders import foreign_settings, user_data_dir
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.errors import StartupError
from openai_cpu_server.storage.private_files import keep_private

_OWN_OPTIONS = ("--host=127.0.0.1", "--port=0", "--jobs-db=none", "--no-page", "--drain-seconds=0")
_POLL_S = 0.1
_HISTORY_LINES = 1000
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Characters that must not reach a terminal."""
_DIM, _PLAIN = "\033[2m", "\033[0m"
_HELP = '''/bye          leave, as Ctrl-D does
/clear        forget the conversation
/system TEXT  begin a new conversation with this system prompt
/?            this help
"""           begins and ends a message of several lines
Ctrl-C        stops an answer'''


def chat(arguments: Sequence[str]) -> None:
    """Exit with the server's status if it does not start."""
    words, option_words = words_and_options(arguments)
    parser = CommandParser(
        "chat",
        "Talk to a model in the terminal. Without --url a server starts for it, and ends with it. A PROMPT, "
        "or a text on standard input, is answered, and the command ends.",
        usage="%(prog)s [MODEL] [PROMPT] [options]",
        epilog="All options of serve that concern the model and the engine are accepted too, without --url.",
    )
    add_server_options(parser, None)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    options, rest = parser.parse_known_args(option_words)
    if options.url:  # its options take all their values, so these are words
        words += [each for each in rest if not each.startswith("-")]
        rest = [each for each in rest if each.startswith("-")]
    prompt = " ".join(words[1:])
    if not (sys.stdin and sys.stdin.isatty()):
        piped = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin else ""
        prompt = f"{prompt}\n\n{piped}".strip()
        if not prompt:
            raise StartupError("standard input is empty: write the prompt after the model's name")
    if options.url and rest:
        parser.parse_args(rest)  # reports the first
    with contextlib.ExitStack() as stack:
        if options.url:
            client = ServerClient(options.url, options.api_key)
        else:
            own_options = [*(f"--model={name}" for name in words[:1]), *rest]
            client = stack.enter_context(_own_server(own_options, parser))
        conversation = TerminalConversation(
            client, words[0] if options.url and words else None, options.system
        )
        if prompt:
            conversation.ask(prompt)
        else:
            _talk(conversation)


@contextlib.contextmanager
def _own_server(options: Sequence[str], parser: CommandParser) -> Iterator[ServerClient]:
    """Start a server on a free port with a random key, and wait until it is ready."""
    settings = read_settings(options, command=parser, is_server=False)
    if settings.ssl_certfile is not None:
        raise StartupError(
            "chat's own server has no HTTPS: leave out ssl_certfile, or name a server with --url"
        )
    if sys.stderr.isatty():
        say("loading the model...")
    key = secrets.token_urlsafe()
    url_source, url_sink = os.pipe()
    own = [*_OWN_OPTIONS, f"--url-fd={url_sink}"]
    if "log_level" not in settings.model_fields_set:
        own.append("--log-level=error")
    with (
        os.fdopen(url_source, encoding="ascii") as url,
        subprocess.Popen(
            [sys.executable, "-m", "openai_cpu_server", "serve", *options, *own],
            stdin=subprocess.DEVNULL,
            env={**foreign_settings(), "OCS_API_KEY": key},
            pass_fds=(url_sink,),
            start_new_session=True,  # Ctrl-C stops an answer, not the server
            preexec_fn=die_with_parent,
        ) as process,
    ):
        try:
            os.close(url_sink)
            if not (address := url.read()):
                sys.exit(process.wait())  # it has written why
            client = ServerClient(address, key)
            while not _is_ready(client):
                if process.poll() is not None:  # it has written why
                    sys.exit(process.returncode)
                time.sleep(_POLL_S)
            yield client
        finally:
            process.terminate()


def _is_ready(client: ServerClient) -> bool:
    with contextlib.suppress(StartupError):
        client.get("/ready")
        return True
    return False


class TerminalConversation:
    def __init__(self, client: ServerClient, model: str | None, system: str | None) -> None:
        """`model`: None for the server's first."""
        self._client = client
        self._model = {} if model is None else {"model": model}
        self.system = system
        self.forget()

    def forget(self) -> None:
        """Keep only the system prompt."""
        self._messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def ask(self, prompt: str) -> None:
        """Stream the answer. An interrupted answer stays in the conversation as far as it came."""
        messages = [*self._messages, {"role": "user", "content": prompt}]
        body = {**self._model, "messages": messages, "stream": True}
        answer = ""
        writer = _Writer()
        try:
            for event in self._client.events("/v1/chat/completions", body):
                for choice in event.get("choices", ()):
                    delta = choice["delta"]
                    writer.write(delta.get("reasoning_content") or "", is_thought=True)
                    writer.write(delta.get("content") or "")
                    answer += delta.get("content") or ""
        finally:
            writer.end()
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": answer}]


class _Writer:
    """Standard output. Thoughts are dim, and for terminals only."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_thought = self._has_written = False

    def write(self, text: str, *, is_thought: bool = False) -> None:
        if not text or (is_thought and not self._is_terminal):
            return
        if self._is_terminal:
            text = text.translate(_CONTROL)
        if is_thought != self._is_thought:
            text = (_DIM if is_thought else f"{_PLAIN}\n\n") + text
        self._is_thought, self._has_written = is_thought, True
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self) -> None:
        if self._has_written:
            sys.stdout.write(f"{_PLAIN}\n" if self._is_thought else "\n")
            sys.stdout.flush()


def _talk(conversation: TerminalConversation) -> None:
    say("/? shows the commands, /bye leaves")
    with _line_history():
        while True:
            try:
                message = _read_message().strip()
                if message == "/bye":
                    return
                if message.startswith("/"):
                    _command(conversation, message)
                elif message:
                    _answer(conversation, message)
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:
                say("\n/bye or Ctrl-D leaves")


def _answer(conversation: TerminalConversation, message: str) -> None:
    try:
        conversation.ask(message)
    except StartupError as error:
        say(str(error))
    except KeyboardInterrupt:
        pass  # the answer ends where it is


def _command(conversation: TerminalConversation, line: str) -> None:
    name, _, rest = line.partition(" ")
    if name in ("/clear", "/system"):
        conversation.system = rest or None if name == "/system" else conversation.system
        conversation.forget()
    elif name in ("/?", "/help"):
        say(_HELP)
    else:
        say(f"unknown command {name}; /? shows all")


def _read_message() -> str:
    """Let triple quotes enclose several lines."""
    line = input(">>> ")
    if not line.lstrip().startswith('"""'):
        return line
    text = line.lstrip()[3:]
    while not text.rstrip().endswith('"""'):
        text += "\n" + input("... ")
    return text.rstrip()[:-3]


@contextlib.contextmanager
def _line_history() -> Iterator[None]:
    """Edit lines, and store them for the next conversation where the user has a home."""
    import readline  # it writes to a terminal when it is imported

    try:
        path = user_data_dir() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        keep_private(path)
        readline.read_history_file(path)
    except (OSError, StartupError):
        yield
        return
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)
