"""Python imports this at its start where the folder is on PYTHONPATH: it notes the functions that are called.

While `$HOPS_FOLDER/on` exists, every function called in any thread is kept; then they are written to
`PID.calls` in that folder, a line each: file, line, name.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

_LOOK_S = 0.02


class _Recorder(threading.Thread):
    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._switch = folder / "on"
        self._is_on = False
        self._codes: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_on and event == "call":
            self._codes.add(frame.f_code)

    def run(self) -> None:
        while not self._switch.exists():
            time.sleep(_LOOK_S)
        self._is_on = True
        while self._switch.exists():
            time.sleep(_LOOK_S)
        self._is_on = False
        part = self._folder / f"{os.getpid()}.part"
        rows = (f"{code.co_filename}\t{code.co_firstlineno}\t{code.co_name}\n" for code in self._codes)
        part.write_text("".join(rows))
        part.rename(part.with_suffix(".calls"))  # whole, once it has its name


_recorder = _Recorder(Path(os.environ["HOPS_FOLDER"]))
_recorder.start()
threading.setprofile(_recorder.note)
sys.setprofile(_recorder.note)
