"""What ``ppsim compare`` prints of nodes and of decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppsim.plan.compare import Comparison
    from ppsim.plan.compare_decode import DecodeStanding

NAMES = {"pp": "PP", "tp": "TP", "cp": "CP"}


def link_title(found: Comparison) -> str:
    """What the first column is the bandwidth of."""
    return "NIC GB/s" if found.joint is not None and found.joint.nodes else "link GB/s"


def nodes_dict(found: Comparison) -> dict[str, Any]:
    """The nodes, where there are any; every ``link_gb_per_s`` is then that of one NIC."""
    joint = found.joint
    if joint is None or not joint.nodes:
        return {}
    return {"nodes": {"gpus_per_node": joint.gpus_per_node, "nics_per_node": joint.num_nics}}


def decode_dict(found: Comparison) -> dict[str, Any]:
    """Decode, where it was asked for."""
    decode = found.decode
    if decode is None:
        return {}
    return {
        "decode": {
            "concurrency": decode.asked.concurrency,
            "output_tokens": decode.asked.output,
            "num_served": decode.asked.num_served or None,
            "base": standing_dict(decode.base),
            "ways": [standing_dict(s) for s in decode.standings],
            "crossovers": [
                {"way": way, "rival": rival, "link_gb_per_s": at, "ahead": ahead or None}
                for way, rival, at, ahead in decode.swaps
            ],
        }
    }


def standing_dict(s: DecodeStanding) -> dict[str, Any]:
    served = s.served
    return {
        "way": s.way,
        "config": {"pp_size": s.split.pp_size, "tp_size": s.split.tp_size, "cp_size": s.split.cp_size},
        "link_gb_per_s": s.link_gb_per_s,
        "itl_s": s.itl_s,
        "output_tokens_per_s": s.output_tokens_per_s,
        "speedup": s.speedup,
        "num_requests_fit": s.num_fit,
        "served": None
        if served is None
        else {
            "requests_per_s": served.requests_per_s,
            "output_tokens_per_s": served.output_tokens_per_s,
            "ttft_s": served.ttft_s,
            "itl_s": served.itl_s,
            "num_retracted": served.num_retracted,
        },
        "why_not_served": s.not_served or None,
    }


def decode_text(found: Comparison) -> list[str]:
    """A table of the steady state and, if it was asked for, of the simulated benchmark; empty without decode."""
    decode = found.decode
    if decode is None:
        return []
    asked = decode.asked
    served = f"; {asked.num_served} requests served, simulated" if asked.num_served else ""
    lines = [
        "",
        f"decode: {asked.concurrency} requests at once, {asked.output} tokens each{served}",
        "",
        f"{link_title(found):>9} {'way':<22} {'ITL ms':>8} {'tokens/s':>10} {'speed-up':>8} {'fit':>6}"
        + (f"  {'req/s':>8} {'tokens/s':>10} {'TTFT s':>8} {'ITL ms':>8}" if asked.num_served else ""),
        row("", f"base: {decode.base.split}", decode.base, asked.num_served),
    ]
    previous = None
    for s in decode.standings:
        gb_per_s = f"{s.link_gb_per_s:g}" if s.link_gb_per_s != previous else ""
        previous = s.link_gb_per_s
        lines.append(row(gb_per_s, f"{NAMES[s.way]}: {s.split}", s, asked.num_served))
    lines.append("")
    for way, rival, at, ahead in decode.swaps:
        if at is not None:
            lines.append(f"{NAMES[way]} overtakes {NAMES[rival]} in decode at {at:.4g} GB/s")
        else:
            behind = way if ahead == rival else rival
            lines.append(f"{NAMES[ahead]} is ahead of {NAMES[behind]} in decode at any link")
    return lines + pairs(found)


def row(gb_per_s: str, name: str, s: DecodeStanding, num_served: int) -> str:
    text = (
        f"{gb_per_s:>9} {name:<22} {s.itl_s * 1e3:>#8.4g} {s.output_tokens_per_s:>10,.0f} {s.speedup:>7.2f}x"
        f" {'any' if s.num_fit is None else s.num_fit:>6}"
    )
    if s.served is not None:
        v = s.served
        text += f"  {v.requests_per_s:>#8.4g} {v.output_tokens_per_s:>10,.0f} {v.ttft_s:>#8.4g} {v.itl_s * 1e3:>#8.4g}"
    elif num_served:
        text += f"  {s.not_served}"
    return text


def pairs(found: Comparison) -> list[str]:
    """PP over TP at each bandwidth, which is what reports of two nodes say."""
    decode = found.decode
    if decode is None:
        return []
    lines = []
    for pp in (s for s in decode.standings if s.way == "pp"):
        tp = next((s for s in decode.standings if s.way == "tp" and s.link_gb_per_s == pp.link_gb_per_s), None)
        if tp is None:
            continue
        text = (
            f"PP over TP at {pp.link_gb_per_s:g} GB/s: {pp.output_tokens_per_s / tp.output_tokens_per_s:.2f}x in decode"
        )
        if pp.served is not None and tp.served is not None:
            text += f", {pp.served.requests_per_s / tp.served.requests_per_s:.2f}x in requests served"
        lines.append(text)
    return lines
