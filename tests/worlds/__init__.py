"""Tests of the simulated world from first principles: formulas and published figures are the oracle, not the code."""
