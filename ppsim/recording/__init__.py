"""Run folders and recordings: record types, writer, reader, digests, summary, first difference of two runs."""

from ppsim.recording.record import Recording
from ppsim.recording.schema import PASS, Verdict

__all__ = ["PASS", "Recording", "Verdict"]
