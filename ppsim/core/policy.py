"""What a scheduler developer may want to decide differently: a small class of a few methods (design decision 8).

The methods below *are* the protocol's own choices. A policy is a subclass that overrides one of them; every rank makes
an instance of its own. Whatever a method returns must be the same on all ranks, or the ranks fall out of step: so it
may look only at what it is given, which is replicated, and at nothing that a rank sees alone. What each argument is,
in which unit, and what must hold of the answer stands at the method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppsim.core.memory.node import Node
from ppsim.core.schedule.request import Request


def no_clock() -> int:
    """Where there is no world, no time goes by."""
    return 0


class Policy:
    """The decisions of the protocol. ``pp_rank`` and ``tp_rank`` say where this instance lives; no answer may use them.

    ``wall_clock_ns()`` is the rank's own clock in nanoseconds, for policies that look at one although they should not.
    In simulation it is virtual and as wrong as the scenario says, so what comes of it is found, shrunk and replayed.
    """

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        self.pp_rank = pp_rank
        self.tp_rank = tp_rank
        self.wall_clock_ns: Callable[[], int] = no_clock

    def may_prefill(self, running: Sequence[Request], waiting: Sequence[Request], free_tokens: int) -> bool:
        """Whether this visit of a slot tries a prefill before it decodes (protocol.md 4.1).

        ``running``: the slot's decode set. ``waiting``: the queue, in order. ``free_tokens``: of the KV pool, without
        what could be evicted. All ranks must agree: an answer that differs gives them different batches (INV-19).
        """
        return True

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        """Waiting requests in the order in which they are tried; the same ones, behind the schedule policy's order.

        A new list with the same requests. All ranks must agree on it (INV-14); who stands last for ever starves.
        """
        return waiting

    def chunk_size(self, prefix_len: int, planned: int) -> int:
        """Tokens of the next chunk of a prompt of which ``prefix_len`` tokens are done; ``planned`` by the chunk table.

        At least 1. All ranks must agree (INV-20). Asked only where chunked prefill is on and a prompt is being cut.
        """
        return planned

    def decode_goes_first(self, num_prefills: int, limit: int) -> bool:
        """Whether a slot decodes now that has run ``num_prefills`` pure prefill batches in a row (bugs.md B87).

        ``limit``: ``max_consecutive_prefills``. Asked only where it is set. All ranks must agree (INV-19).
        """
        return 0 < limit <= num_prefills

    def waiting_goes_first(self, num_chunks: int, limit: int) -> bool:
        """Whether waiting requests get the first chance after ``num_chunks`` chunks of one prompt in a row (B88, B92).

        ``limit``: ``max_consecutive_chunks``. Asked only where it is set. All ranks must agree (INV-10).
        """
        return 0 < limit <= num_chunks

    def retraction_order(self, running: list[Request]) -> list[Request]:
        """A slot's decode set, most preferred first; the last one is retracted first (protocol.md 4.5).

        A new list with the same requests. All ranks must agree on it (INV-18).
        """
        return sorted(running, key=lambda r: (-len(r.output_ids), r.prompt_len))

    def eviction_key(self, node: Node) -> int:
        """The unused leaf of the prefix tree with the smallest key goes first; ties go to the older node.

        ``node.last_access`` counts operations of the tree, no time. A key may change only when the node is used.
        All ranks must agree (INV-26).
        """
        return node.last_access


POLICY_METHODS = tuple(name for name in vars(Policy) if not name.startswith("_"))
"""The decisions by name, in the order of the class."""
