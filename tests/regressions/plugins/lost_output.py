"""The last rank has lost the send of decode outputs in a merge; the receive is still posted (vllm-omni #7393)."""

from ppsim.core.exchange import Exchange
from ppsim.core.messages import Output
from ppsim.core.rank import Rank
from ppsim.core.schedule.batch import Mode
from ppsim.plugin import planted


@planted("decode_output_not_sent", breaks="INV-33", profile="plain", source="outside report")
class DecodeOutputNotSent(Exchange):
    """The last rank sends no output of a decode batch."""

    def output_to_send(self, rank: Rank) -> Output | None:
        output = super().output_to_send(rank)
        batch = rank.scheduler.slots.slots[output.slot].launched if output is not None else None
        is_decode = batch is not None and batch.forward.mode is Mode.DECODE
        return None if rank.config.is_last and is_decode else output
