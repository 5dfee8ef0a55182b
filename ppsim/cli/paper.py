"""``ppsim paper``: published figures beside ours: which were used to fit, which are predictions, the error of each."""

from __future__ import annotations

import json

from ppsim.cli.guard import guarded
from ppsim.cli.options import JsonOption


@guarded
def paper(as_json: JsonOption = False) -> int:
    """Run the published configurations and print the published figures beside ours."""
    from ppsim.plan.paper import fitted_efficiency, paper_table

    efficiency = fitted_efficiency()
    rows = paper_table(efficiency)
    if as_json:
        print(json.dumps([row.to_dict() for row in rows]))
        return 0
    print(f"one constant: efficiency {efficiency:.4f} of the peak arithmetic rate, fitted on the row marked 'fit'")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'figure':<{width}}  {'published':>9} {'ours':>9} {'error':>7}  kind")
    for row in rows:
        error = "" if row.error is None else f"{100 * row.error:+.1f} %"
        kind = "prediction"
        if row.used_to_fit:
            kind = "fit" if row.error is not None else f"no prediction: {row.unit}"
        print(f"{row.name:<{width}}  {row.published:>9.2f} {row.ours:>9.2f} {error:>7}  {kind}")
    print()
    print(f"source: {rows[0].source}")
    return 0
