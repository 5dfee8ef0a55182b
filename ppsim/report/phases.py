"""Phases of a rank's iteration in words, for pictures and pages: a reader of them has not read the loop.

Rule: every phase that a loop of ours has is named here (a test walks the loops of all roles); of a phase that a plug-in
brings the name itself stands, with spaces. What each does is told in docs/effects.md.
"""

from __future__ import annotations

WORDS = {
    "agree_on_start": "agreeing on the size of the KV pool",
    "compare": "comparing what the ranks did",
    "event_loop_pp": "between two phases",
    "ingest_inputs": "taking in new requests",
    "forward_inputs": "passing the list of requests on",
    "note_shutdown": "looking whether the server shuts down",
    "commit_inputs": "waiting until the list of requests was taken",
    "share_inputs": "sharing the list of requests inside the stage",
    "apply_inputs": "applying the list of requests",
    "acknowledge_flush": "telling that the cache is empty",
    "agree_grammar": "agreeing on which grammars are ready",
    "agree_tiers": "agreeing on copies of the host cache",
    "agree_bootstrap": "agreeing on which transfers may begin",
    "schedule": "choosing the batch",
    "receive_hidden": "receiving hidden states",
    "exchange_if_deep": "exchange of outputs before the launch",
    "commit_hidden": "waiting until hidden states were taken",
    "launch_batch": "starting the forward pass",
    "send_hidden_first": "sending hidden states on, before the outputs",
    "exchange_if_shallow": "exchange of outputs after the launch",
    "send_hidden_early": "sending hidden states on, before the harvest",
    "harvest": "harvest: applying tokens, answering clients",
    "absorb_outputs": "harvest: applying tokens",
    "report_harvest": "harvest: answering clients",
    "send_hidden_late": "sending hidden states on",
    "answer_flush": "answering a flush of the cache",
    "carry_over": "end of the iteration",
    "send_inputs": "sending the list of requests on",
    "send_votes": "sending votes on",
    "end_iteration": "looking whether the run is over",
    "pass_on_the_rest": "passing the last votes on",
    "conclude": "comparing what the ranks did",
    "finish": "waiting until everything sent was taken",
}
OF_VOTES = {
    "first_pass": "vote on {}: adding what this rank sees",
    "second_send": "vote on {}: sending its result on",
    "second_receive": "vote on {}: receiving its result",
    "second_commit": "vote on {}: waiting until its result was taken",
    "apply": "vote on {}: applying its result",
}
VOTES = {
    "bootstrap": "transfers that may begin",
    "release": "transfers that are over",
    "retract": "retracted requests",
    "prealloc": "memory for transfers",
    "transferred": "KV that has come",
}


def phase_words(phase: str) -> str:
    """A phase in words; its own name with spaces where nobody has any."""
    if phase in WORDS:
        return WORDS[phase]
    for begin, words in OF_VOTES.items():
        vote = phase.removeprefix(f"{begin}_")
        if vote != phase:
            return words.format(VOTES.get(vote, vote.replace("_", " ")))
    return phase.replace("_", " ")


def doing_words(doing: str) -> str:
    """What a rank did at its last step (``Stand.doing``), its phase in words: "schedule: is paused ...".

    What processes leave has no phase, and is words already.
    """
    phase, colon, rest = doing.partition(": ")
    return f"{phase_words(phase)}: {rest}" if colon and phase.isidentifier() else doing
