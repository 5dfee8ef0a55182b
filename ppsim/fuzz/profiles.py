"""Fuzz profiles: which features an experiment of a campaign may use.

Swarm testing: every example switches some of its profile's features off, because a bug that needs many retractions is
not found where every request is aborted first. ``all`` uses everything that does not exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from ppsim.errors import UsageError


@dataclass(frozen=True, slots=True)
class Profile:
    """``roles`` are the server roles an example is drawn from; ``features`` are those it may switch on."""

    name: str
    roles: tuple[str, ...]
    features: tuple[str, ...]
    always: tuple[str, ...] = ()  # features that no example of this profile switches off


BASE = (
    "chunks",
    "prefixes",
    "pages",
    "tight_pool",
    "depth",
    "replicas",
    "stops",
    "jitter",
    "host",
    "skip_rule",
    "long_outputs",
    "long_prompts",
    "bursts",
    "gaps",
    "retraction",
    "starved",
    "overlap",
    "pauses",
    "late_arrivals",
    "stalls",
    "lost_memory",
    "refused_memory",
    "sampled_stops",
    "ignore_eos",
    "streams",
    "again",
    "big_batches",
    "clients",
)
RULES = ("mended", "rule_keys")
POLICY = (
    "mixed",
    "lpm",
    "decode_interval",
    "no_radix",
    "small_slots",
    "few_rows",
    "uneven_pools",
    "early_hidden",
    "all_slots",
    "priorities",
    "prefill_limits",
    "turns",
    "tiny_chunks",
)
DELAYS = ("delays", "listed", "skew")
TIERS = ("write_back", "tiny_host", "storage", "slow_tiers", "uneven_host", "many_prefixes")  # of "hicache"
ENDS = ("aborts", "abort_all", "late_aborts", "flush", "timeouts")
WIRE = ("kv_faults", "limits")  # between two pipelines
SIDES = ("ring_bootstrap", "failures", "store_lag", "stuck")

PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile("plain", ("plain",), (*BASE, *RULES, *POLICY)),
        Profile(
            "chunked",
            ("plain",),
            (*BASE, *RULES, "mixed", "small_slots", "few_rows", "turns", "tiny_chunks"),
            ("chunks",),
        ),
        Profile("abort", ("plain",), (*BASE, *RULES, *POLICY, *ENDS), ("aborts",)),
        Profile(
            "retraction",
            ("plain", "decode"),
            (*BASE, *RULES, *DELAYS, "aborts", "mixed", "decode_interval", "small_slots", "no_radix"),
            ("retraction",),
        ),
        Profile("pd", ("prefill", "decode"), (*BASE, *DELAYS, *SIDES, "aborts", "abort_all", "grammar")),
        Profile(
            "pair",
            ("pd",),
            (*BASE, "aborts", "abort_all", "ring_bootstrap", *WIRE, "delays", "listed", "hicache", *TIERS),
        ),
        Profile("grammar", ("plain",), (*BASE, *DELAYS, "grammar", "aborts", "failures"), ("grammar",)),
        Profile(
            "hicache",
            ("plain", "plain", "prefill", "pd"),
            (*BASE, *RULES, "lpm", "few_rows", "small_slots", "mixed", "aborts", "abort_all", "flush", *DELAYS, *TIERS),
            ("hicache", "prefixes", "tight_pool"),
        ),
        Profile(
            "fairness",
            ("plain",),
            ("prefixes", "pages", "depth", "stops", "host", "lpm", "small_slots", "few_rows", "priorities", *RULES),
            ("turns", "chunks", "bursts", "long_outputs", "long_prompts"),
        ),
        Profile("blocking", ("plain",), (*BASE, "aborts", "rendezvous", "parity"), ("rendezvous", "parity")),
        Profile(
            "all",
            ("plain", "plain", "prefill", "decode", "pd"),
            (
                *BASE,
                *RULES,
                *POLICY,
                *DELAYS,
                *ENDS,
                *SIDES,
                *WIRE,
                "grammar",
                "hicache",
                *TIERS,
                "rendezvous",
                "parity",
            ),
        ),
    )
}


def profile_named(name: str) -> Profile:
    """A profile by name. Raises UsageError with the nearest name and all the known ones."""
    if name not in PROFILES:
        near = get_close_matches(name, PROFILES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(f"unknown profile {name!r}{hint}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


def covers(profile: Profile, other: Profile) -> bool:
    """Whether what the other profile generates could be of this one as well."""
    features = (*profile.features, *profile.always)
    return set(other.roles) <= set(profile.roles) and set(other.always) <= set(features)


def profile_of_bugs(wanted: str | None, bugs: list[tuple[str, str]]) -> str:
    """The profile of a campaign against planted bugs, each with its own profile: that one, else ``all``.

    Raises UsageError where the wanted profile has nothing of what a bug needs: no example would ever show it.
    """
    for name, profile in bugs:
        if profile not in PROFILES:
            raise UsageError(f"planted bug {name!r} names the profile {profile!r}; there are: {', '.join(PROFILES)}")
    own = list(dict.fromkeys(profile for _, profile in bugs))
    if wanted is None:
        return own[0] if len(own) == 1 else "all"
    for name, profile in bugs:
        if wanted not in (profile, "all") and not covers(profile_named(wanted), profile_named(profile)):
            raise UsageError(
                f"--profile {wanted} and --bug {name} contradict each other: it shows in examples of profile "
                f"{profile!r}, which profile {wanted!r} does not generate (use --profile {profile}, or all)"
            )
    return wanted
