"""`openai-cpu-server run MODEL`: serves the model and opens the page, or answers one prompt."""

from __future__ import annotations

import os
import stat
import sys
import threading
import webbrowser
from collections.abc import Sequence

from openai_cpu_server.cli.chat import chat
from openai_cpu_server.cli.plain_text import say, show
from openai_cpu_server.cli.serve import serve
from openai_cpu_server.config.command_line import words_and_options
from openai_cpu_server.config.folders import foreign_settings

_HELP = """usage: openai-cpu-server run [MODEL] [PROMPT] [options of serve]

Serve the model and open its page in the browser; without a display the address is printed. With a PROMPT,
or a text that is piped in, answer it in the terminal and end. The command `chat` talks in the terminal."""


def serve_and_open(arguments: Sequence[str]) -> None:
    words, options = words_and_options(arguments)
    if {"-h", "--help"} & {*options}:
        show(_HELP)
    elif len(words) > 1 or (sys.stdin and stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)):
        chat(arguments)
    else:
        serve(arguments, on_listening=_open_page)


def _open_page(url: str) -> None:
    """Open a window; a browser in the terminal would hide the log."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    has_window = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & {*foreign_settings()}
    say(f"the page is at {url}/")
    if has_window:
        threading.Thread(target=webbrowser.open, args=(f"{url}/",), daemon=True).start()
