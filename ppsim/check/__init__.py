"""What must hold, for both worlds: pure functions and small tables over ranks, effects and records.

Rule: this package imports ``core`` and nothing of the worlds. It raises ``InvariantViolation`` or answers with a
verdict; it sends nothing, waits for nothing and looks at no clock.
"""
