"""Programs that start a server, and what may stand before them.

Anything in front of the program (sudo, env, tini, docker run, uv run ...) is a wrapper and need not be known. Only
where a container image is started without a program must the runtime's own options be skipped to find the server's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """``variant`` names a relative of the engine that reads (nearly) the same flags."""

    engine: str
    name: str
    variant: str = ""
    extra: tuple[str, ...] = ()


BENCH = ("sglang-bench",)
MODULES: tuple[tuple[re.Pattern[str], str, str, tuple[str, ...]], ...] = (
    (re.compile(r"sglang\.launch_server$"), "sglang", "", ()),
    (re.compile(r"sglang\.bench_(one_batch|one_batch_server|latency|offline_throughput)$"), "sglang", "", BENCH),
    (re.compile(r"sglang_router\.launch_server$"), "sglang", "router", ()),
    (re.compile(r"(sgl_jax|sglang_jax)\.launch_server$"), "sglang", "jax", ()),
    (re.compile(r"dynamo\.sglang(\.\w+)*$"), "sglang", "dynamo", ()),
    (re.compile(r"(?!sglang_router)sglang[_-]\w+(\.launch_server|\.serve)?$"), "sglang", "fork", ()),
    (re.compile(r"vllm\.entrypoints\.\S*api_server$"), "vllm", "", ()),
    (re.compile(r"dynamo\.vllm(\.\w+)*$"), "vllm", "dynamo", ()),
    (re.compile(r"aphrodite\.endpoints\.\S*api_server$"), "vllm", "aphrodite", ()),
)
COMMANDS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "sglang": ("sglang", ("serve", "launch_server", "launch-server"), ""),
    "vllm": ("vllm", ("serve",), ""),
    "aphrodite": ("vllm", ("run", "serve"), "aphrodite"),
}
MODULE_COMMANDS = {"vllm.entrypoints.cli.main": "vllm", "sglang.cli.main": "sglang", "vllm": "vllm", "sglang": "sglang"}
NO_SERVERS = (
    (
        re.compile(r"\bvllm(?:\.entrypoints\.cli\.main)?\s+(?:bench|chat|complete|run-batch|collect-env)\b"),
        "a client or a benchmark",
    ),
    (re.compile(r"\bsglang\s+(?:generate|bench|version)\b"), "a client or a benchmark"),
    (
        re.compile(r"\b(?:sglang\.bench_serving|bench_serving\.py|benchmark_serving\.py|genai-perf|aiperf)\b"),
        "a client",
    ),
    (re.compile(r"\b(?:sglang_router\.launch_router|sglang-router|sglang\.srt\.disaggregation\.\w+_lb)\b"), "a router"),
    (
        re.compile(r"\b(?:trtllm-serve|text-generation-launcher|lmdeploy\s+serve|llama-server|ollama)\b"),
        "another engine",
    ),
)
SCRIPTS = (
    (re.compile(r"(^|.*/)launch_server\.py$"), "sglang", ()),
    (re.compile(r"(^|.*/)bench_one_batch(_server)?\.py$"), "sglang", BENCH),
    (re.compile(r".*vllm/\S*api_server\.py$"), "vllm", ()),
)
HAS_PROGRAM = re.compile(
    r"(?:-m\s*(?:sglang\S*\.launch_server|sglang\.cli|vllm\.entrypoints|sgl_jax\.|aphrodite\.)|\b(?:sglang|vllm)\s+serve\b|\baphrodite\s+run\b)"
)
RUNTIMES = ("docker", "podman", "nerdctl")
SWITCHES = (  # options of `docker run` without a value
    "-d", "-i", "-t", "-it", "-ti", "-dit", "-itd", "-td", "-id", "-P", "--detach", "--init", "--interactive", "--tty",
    "--rm", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable", "--publish-all", "--quiet", "-q",
    "--sig-proxy", "--disable-content-trust",
)  # fmt: skip
IMAGES = (
    (re.compile(r"vllm[-_]?ascend"), "vllm", "ascend"),
    (re.compile(r"vllm"), "vllm", ""),
    (re.compile(r"sglang|sgl-"), "sglang", ""),
    (re.compile(r"aphrodite"), "vllm", "aphrodite"),
)


def has_program(text: str) -> bool:
    return HAS_PROGRAM.search(text) is not None


def find_program(words: Sequence[str]) -> tuple[Program, int] | None:
    """The first program and the place of its first argument."""
    for i, word in enumerate(words):
        module = word if i and words[i - 1] == "-m" else word[2:] if word.startswith("-m") else ""
        if module in MODULE_COMMANDS:
            base = MODULE_COMMANDS[module]
            if i + 1 < len(words) and words[i + 1] in COMMANDS[base][1]:
                return Program(COMMANDS[base][0], f"{module} {words[i + 1]}"), i + 2
        elif module:
            for pattern, engine, variant, extra in MODULES:
                if pattern.match(module):
                    return Program(engine, module, variant, extra), i + 1
        base = word.rsplit("/", 1)[-1]
        if base in COMMANDS and i + 1 < len(words) and words[i + 1] in COMMANDS[base][1]:
            engine, _, variant = COMMANDS[base]
            return Program(engine, f"{base} {words[i + 1]}", variant), i + 2
        for pattern, engine, extra in SCRIPTS:
            if word.endswith(".py") and pattern.match(word):
                return Program(engine, base, "", extra), i + 1
    return None


def docker_arguments(words: Sequence[str]) -> int | None:
    """Place of the first word behind the image of ``docker run``, or None if this is not one."""
    start = next((i for i in range(len(words) - 1) if words[i] in RUNTIMES and words[i + 1] == "run"), None)
    if start is None:
        return None
    i = start + 2
    while i < len(words):
        word = words[i]
        if not word.startswith("-"):
            return i + 1
        i += 1 if "=" in word or word in SWITCHES else 2
    return None


def image_engine(image: str) -> tuple[str, str] | None:
    """Engine and variant that an image's name gives away."""
    low = image.lower()
    return next(((engine, variant) for pattern, engine, variant in IMAGES if pattern.search(low)), None)


def no_server(text: str) -> str:
    """What a text without a server starts instead, as a sentence; empty where nothing known."""
    found = ((pattern.search(text), what) for pattern, what in NO_SERVERS)
    return next(
        (f": {match.group()!r} is {what}, and starts no server that is read here" for match, what in found if match), ""
    )
