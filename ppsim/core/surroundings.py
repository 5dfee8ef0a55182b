"""How the world around the ranks behaves, as far as the protocol counts on it: its clocks, its store, its transfers.

Both worlds ask an object of this class where they answer a rank; there is one for a whole run, so that it may remember.
A subclass is a world that does something wrong (a store that is out of order, a write that begins too early), to see
whether the ranks hold or the rules notice. ``rank`` is a ``rank_id``; times are ns unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.core.consensus import store_minimum


class Surroundings:
    """A world as the protocol expects it."""

    # --- clocks, in both worlds ------------------------------------------------------------------------------------

    def clock_ms(self, rank: int, now_ms: int) -> int:
        """What ``rank`` reads off its clock at ``now_ms``; the scenario's clock skew is in it."""
        return now_ms

    # --- the consensus store, asked for the first rank, in both worlds ---------------------------------------------

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        """What the store says of a request from the status of each rank, None where none has been told.

        The minimum, and Bootstrapping if a status is missing (protocol.md 6.4).
        """
        return store_minimum(statuses)

    def store_age_ns(self, rank: int, iteration: int, lag_ns: int) -> int:
        """How old the view of ``rank``'s statuses is in that iteration of the first rank. Simulation only.

        Statuses come in one first-in-first-out stream, so it is always the same lag.
        """
        return lag_ns

    # --- transfers between two pipelines, in simulation only ---------------------------------------------------------

    def write_begins_ns(self, room: int, rank: int, num_tokens: int, computed_ns: int) -> int:
        """Earliest instant at which ``rank`` sends KV of ``num_tokens`` of a room: the end of its forward pass (B34).

        ``computed_ns``: the end of the forward pass that computed it.
        """
        return computed_ns

    def transfer_drains(self, room: int, rank: int) -> bool:
        """Whether a transfer that was given up has ended only when nothing is under way any more (bugs.md B33)."""
        return True

    def tells_peer(self, room: int, rank: int, side: str, what: str) -> bool:
        """Whether the other side hears that ``rank`` of ``side`` "failed", "refused" or wants to "stop" (B40, B71).

        ``side``: "prefill" or "decode", of the one that tells (bugs.md B84).
        """
        return True

    def lease_ends(self, room: int, rank: int) -> bool:
        """Whether a receiver that waits for a word of a silent sender gives up at last (bugs.md B38)."""
        return True


ONLY_SIMULATED = ("store_age_ns", "write_begins_ns", "transfer_drains", "tells_peer", "lease_ends")
"""What only the simulated world asks: real processes have no model of these."""
