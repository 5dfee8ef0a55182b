"""What arrives, and when: scripted, generated, or read from a trace file. Same scenario and seed: the same bytes."""

from ppsim.workload.arrivals import EOS_TOKEN_ID, Arrival, Control, Workload
from ppsim.workload.build import build_workload

__all__ = ["EOS_TOKEN_ID", "Arrival", "Control", "Workload", "build_workload"]
