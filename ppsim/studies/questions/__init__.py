"""Questions that users asked in public about configuration and performance (bugs.md P01 to P31), answered by runs.

``ppsim questions`` prints what was reported beside what a run of a scenario gives. Each theme is a module; ``asked.py``
has the rule by which a verdict follows, ``text.py`` what is printed and what docs/results/questions.md holds.
"""

from __future__ import annotations

from difflib import get_close_matches

from ppsim.errors import UsageError
from ppsim.studies.questions.asked import Answered, Compared, Figure, Question, Variant
from ppsim.studies.questions.chunks import CHUNKS
from ppsim.studies.questions.control import CONTROL
from ppsim.studies.questions.layers import LAYERS
from ppsim.studies.questions.loops import LOOPS
from ppsim.studies.questions.runs import Runs

QUESTIONS: dict[str, Question] = {
    q.key: q for q in sorted((*CHUNKS, *CONTROL, *LAYERS, *LOOPS), key=lambda question: question.key)
}


def question(key: str) -> Question:
    """A question by its number. Raises UsageError with the nearest one."""
    found = QUESTIONS.get(key.upper())
    if found is None:
        near = get_close_matches(key.upper(), QUESTIONS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "see: ppsim questions"
        raise UsageError(f"unknown question {key!r} ({hint}); known: {', '.join(QUESTIONS)}")
    return found


__all__ = ["QUESTIONS", "Answered", "Compared", "Figure", "Question", "Runs", "Variant", "question"]
