"""new_token_ratio (protocol.md 4.3): a line, a formula, and exact numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ppsim.core.schedule.ratio import NewTokenRatio

INIT, LOW = Fraction(7, 10), Fraction(98, 1000)


def fresh(init: Fraction = INIT, low: Fraction = LOW, steps: int = 600) -> NewTokenRatio:
    return NewTokenRatio(init, low, steps)


def test_it_falls_on_a_straight_line_from_0_7_to_0_098_in_600_steps_and_stays_there() -> None:
    ratio = fresh()
    for step in range(700):
        assert ratio.value == max(INIT - (INIT - LOW) * step / 600, LOW)
        ratio.decay()


@pytest.mark.parametrize(
    ("generated", "num", "limits", "expected"),
    [
        (30, 2, 100, Fraction(70, 101)),
        (0, 1, 9, Fraction(1)),  # 20/10, capped
        (1, 1, 1000, Fraction(21, 1001)),  # below the minimum: what the formula says
        (0, 0, 0, Fraction(0)),  # the last request was aborted: nobody is left
    ],
)
def test_a_retraction_sets_it_from_those_who_stay(generated: int, num: int, limits: int, expected: Fraction) -> None:
    ratio = fresh()
    ratio.decay()
    ratio.after_retraction(generated, num, limits, 20)
    assert ratio.value == expected


def test_a_value_below_the_minimum_rises_to_it_with_the_next_decode() -> None:
    ratio = fresh()
    ratio.after_retraction(1, 1, 1000, 20)
    ratio.decay()
    assert ratio.value == LOW


def test_after_a_retraction_the_line_goes_on_from_there_with_the_same_slope() -> None:
    ratio = fresh()
    ratio.after_retraction(30, 2, 100, 20)
    for step in range(1, 5):
        ratio.decay()
        assert ratio.value == Fraction(70, 101) - (INIT - LOW) * step / 600


def test_reset_goes_back_to_the_start_and_conservativeness_is_capped_at_one() -> None:
    ratio = fresh(init=Fraction(14, 10), low=Fraction(14, 10) * Fraction(14, 100))
    assert ratio.value == 1
    ratio.decay()
    assert ratio.value < 1
    ratio.reset()
    assert ratio.value == 1
