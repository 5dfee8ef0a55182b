"""Sentences that belong under the title of a run's picture: what a reader of it should hear and no box can show."""

from __future__ import annotations

from ppsim.recording.record import Recording
from ppsim.recording.stalls import stalls


def notes(recording: Recording) -> list[str]:
    """One sentence each; drawn under the title, in this order. Empty where there is nothing to say."""
    return stalls(recording).sentences()
