"""Bugs between the two pipelines of disaggregation: bugs.md, classes KV lifetime, abort and consensus."""

from __future__ import annotations

from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request, State
from ppsim.core.surroundings import Surroundings
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does


@planted("freed_while_being_written", breaks="INV-52", profile="pair", source="bugs.md B33")
class FreedWhileBeingWritten(DecodeRole):
    """An abort on the decode side frees the pages at once, while senders still write to them."""

    def drains(self, request: Request) -> bool:
        waits = super().drains(request)
        if request.state is not State.TRANSFER:
            return waits
        self.transfer.remove(request)
        return False


@planted("sent_at_launch", breaks="INV-65", profile="pair", source="bugs.md B34")
class SentAtLaunch(Surroundings):
    """KV of a chunk is sent as soon as the next one is scheduled, whether its own forward pass has ended or not."""

    def write_begins_ns(self, room: int, rank: int, num_tokens: int, computed_ns: int) -> int:
        return 0


@planted("silent_sender_is_waited_for", breaks="INV-70", profile="pair", source="bugs.md B38")
class SilentSenderIsWaitedFor(Surroundings):
    """An aborted receiver holds its pages until the word of its sender comes, however long that takes."""

    def lease_ends(self, room: int, rank: int) -> bool:
        return False


@planted("rejection_not_told", breaks="INV-70", profile="pair", source="bugs.md B40")
class RejectionNotTold(Surroundings):
    """The decode side rejects a request and tells its client only."""

    def tells_peer(self, room: int, rank: int, side: str, what: str) -> bool:
        return what not in ("refused", "stop")


@planted("evicted_before_sent", breaks="INV-52", profile="pair", source="bugs.md B43")
class EvictedBeforeSent(Loop):
    """Nothing protects the KV of a computed prompt between its last chunk and the end of its transfer."""

    def plan(self) -> Plan:
        steps = super().plan()
        return behind(steps, "report_harvest", does(leave_to_the_cache))


def leave_to_the_cache(rank: Rank) -> None:
    role, kv = rank.scheduler.role, rank.scheduler.kv
    for request in role.inflight if isinstance(role, PrefillRole) else ():
        if request.last_node is not None and request.pages:
            kv.pool.release(request.pages)
            kv.tree.unlock(request.last_node)
            request.pages, request.last_node, request.kv_len, request.cached_len = [], None, 0, 0


@planted("failure_not_told", breaks="INV-70", profile="pair", source="bugs.md B71, B84")
class FailureNotTold(Surroundings):
    """A side that fails (a handshake limit, a write that cannot be posted) ends the request alone; the other waits."""

    def tells_peer(self, room: int, rank: int, side: str, what: str) -> bool:
        return what == "refused"
