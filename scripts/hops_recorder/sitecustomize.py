"""Recorder of called functions, imported by Python at its start if the folder is on PYTHONPATH. While `on`
exists beside this file, every function called in any thread is kept. Then they are added to `PID.calls`
there, a line each (file, line, name), with `.` at the end; and again each time that `on` returns. The file
is opened at the start, because later a process may have confined itself."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

_LOOK_S = 0.02
_FOLDER = Path(__file__).parent


class _Recorder(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._file = (_FOLDER / f"{os.getpid()}.calls").open("w")
        self._switch = _FOLDER / "on"
        self._is_on = False
        self._codes: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_on and event == "call":
            self._codes.add(frame.f_code)

    def run(self) -> None:
        while True:
            while not self._switch.exists():
                time.sleep(_LOOK_S)
            self._codes = set()
            self._is_on = True
            while self._switch.exists():
                time.sleep(_LOOK_S)
            self._is_on = False
            rows = (f"{code.co_filename}\t{code.co_firstlineno}\t{code.co_name}\n" for code in self._codes)
            self._file.write("".join(rows) + ".\n")
            self._file.flush()


_recorder = _Recorder()
_recorder.start()
threading.setprofile(_recorder.note)
sys.setprofile(_recorder.note)
