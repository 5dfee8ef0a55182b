"""Recorded decisions of an engine, held against the scheduler visit by visit (``ppsim conform``; docs/conform.md).

format.py   the file: one run a line, every field checked
replay.py   the core's own scheduler, driven with the recorded requests and tokens; the first difference
"""

from ppsim.conform.format import VERSION, RecordedRun, read_runs
from ppsim.conform.replay import Difference, config_of, first_difference

__all__ = ["VERSION", "Difference", "RecordedRun", "config_of", "first_difference", "read_runs"]
