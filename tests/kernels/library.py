"""The library of kernels that tests run with."""

from __future__ import annotations

import os
from pathlib import Path

from openai_cpu_server.kernels.build import LIBRARY

VARIABLE = "KERNELS_UNDER_TEST"
"""This environment variable names another library than the one that is installed."""
KERNELS = Path(os.environ.get(VARIABLE, LIBRARY))
