"""``ppsim run --while-running``: the ranks' files while a simulated run goes on (``ppsim.recording.batches``).

A simulated run can be made again from its scenario, so this is no default: it costs time (docs/recording.md). Who wants
to look into a run that goes on for an hour, or to keep what there is when its machine goes down, asks for it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppsim.recording.batches import Batches
    from ppsim.recording.schema import Origin
    from ppsim.scenario import Scenario
    from ppsim.world.run_setting import Setting


class WhileRunning:
    """A context; ``began`` is told the setting of the run, more than once where it begins again by events."""

    def __init__(self, path: Path, scenario: Scenario, origin: Origin, *, is_on: bool) -> None:
        self.path, self.scenario, self.origin, self.is_on = path, scenario, origin, is_on
        self.batches: list[Batches] = []

    def __enter__(self) -> WhileRunning:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for batches in self.batches:
            batches.close()

    def began(self, setting: Setting) -> None:
        """Begin the files anew, and hear from the first rank when the next batch is due."""
        if not self.is_on:
            return
        from ppsim.recording.folder import clear_earlier, write_config
        from ppsim.recording.rank_file import PEER_RANKS, RANKS

        self.__exit__(None, None, None)
        clear_earlier(self.path)
        write_config(self.path, self.scenario.model_dump(mode="json"))
        self.batches = [self.of(self.path, setting)]
        if setting.peer is not None:
            self.batches.append(self.of(self.path / RANKS / PEER_RANKS, setting.peer))
        setting.watch.beside, setting.watch.tell_at = self.write, first_batch()

    def of(self, folder: Path, setting: Setting) -> Batches:
        from ppsim.recording.batches import Batches
        from ppsim.world.where_stuck import stand

        setting.recording.origin = self.origin
        return Batches(folder, setting.recording, lambda rank: stand(setting.ranks[rank]))

    def write(self, iteration: int) -> int:
        """A batch of every pipeline; the reply is the iteration of the next one."""
        for batches in self.batches:
            batches.write()
        return iteration + first_batch()


def first_batch() -> int:
    from ppsim.recording.batches import ITERATIONS

    return ITERATIONS
