"""Imported at the start of every Python process that tests start beside others: `tests/company.py`."""

import os

os.SCHED_IDLE = os.SCHED_OTHER
