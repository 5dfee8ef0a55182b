"""Takes what surrounds a command off each line: quote marks, prompts, YAML, Dockerfile and unit keys.

A line comes out as shell text, as an element of an argument list (no command ends behind it), as ready words, or as an
assignment of an environment variable. Nothing here knows what a flag means, except that a mapping whose key is the name
of a server argument is an argument (configuration files).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

from ppsim.sglang.flags import fields
from ppsim.sglang.programs import has_program
from ppsim.sglang.shell_words import Word, literal

QUOTE_MARK = re.compile(r"^\s*>+[ \t]?(?!>)")
PROMPT = re.compile(r"^\s*(?:\([\w.-]+\)\s*)?(?:\[?[\w.-]+@[\w.-]+(?:[: ][^\s$#%]*)?\]?\s*[$#%]|\$)\s+(?=\S)")
GLUED_PROMPT = re.compile(
    r"^\s*\$(?=(?:python[\d.]*|vllm|sglang|aphrodite|docker|podman|sudo|export|nohup|env|uv|bash|sh)\s)"
)
FENCE = re.compile(
    r"^\s*(?:`{3,}|~{3,})\s*(?P<lang>(?:bash|sh|shell|zsh|console|text|bat|powershell|cmd)\b)?(?P<rest>.*)$"
)
END_OF_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*$")
INLINE_CODE = re.compile(r"(?<![\\=`\"'])(`{1,2})(?!`)(?P<code>[^`]+)\1(?!`)")
DOCKERFILE = re.compile(r"^\s*(?:CMD|ENTRYPOINT|RUN)\s+(?P<rest>\S.*)$")
DOCKERFILE_ENV = re.compile(r"^\s*ENV\s+(?P<name>[A-Za-z_]\w*)\s+(?P<value>[^=\s].*)$")
UNIT = re.compile(r"^\s*(?P<key>ExecStart|Environment)=(?P<rest>.*)$")
ITEM = re.compile(r"^\s*-\s+(?P<rest>\S.*)$")
MAPPING = re.compile(r"^\s*[\"']?(?P<key>[A-Za-z_][\w./-]*)[\"']?:(?:[ \t]+(?P<value>.*))?$")
LABEL = re.compile(r"^\s*[A-Za-z][\w (),/&+-]{0,40}:\s+(?=.*(?:sglang|vllm|aphrodite|\s--))")
STRINGS = re.compile(r"^\s*\[?\s*(?:\"[^\"]*\"|'[^']*')(?:\s*,\s*(?:\"[^\"]*\"|'[^']*'))*\s*(?:,\s*\]?|\])\s*,?\s*$")
STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s,\[\]]+)")
BLOCK = re.compile(r"^[|>][+-]?\d?\s*(?:#.*)?$")
ENV_NAME = re.compile(r"^[A-Z][A-Z0-9_]{2,}$")
DASHES = re.compile(r"(^|\s)[\u2013\u2014](?=[A-Za-z])")
QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"})
FOLDED = "folded"  # name of a line that belongs to the scalar before it
COMMAND_KEYS = ("command", "args", "entrypoint", "cmd", "run", "script", "exec", "arguments", "extra_args", "extraArgs")


@dataclass(slots=True)
class Line:
    """``shell``: scan ``text``. ``item``: scan as list elements. ``words``: split already. ``assign``: one variable."""

    kind: Literal["shell", "item", "words", "assign", "skip", "unresolved_assign"]
    text: str = ""
    words: list[Word] = field(default_factory=list)
    name: str = ""
    notes: list[str] = field(default_factory=list)


class Unwrapper:
    """Keeps the little state that YAML needs between lines."""

    def __init__(self, lines: list[str]) -> None:
        filled = [line for line in lines if line.strip()]
        self.all_quoted = bool(filled) and all(line.lstrip().startswith(">") for line in filled)
        self.env_name = ""
        self.images: list[tuple[int, str]] = []
        self.in_flow = False
        self.fold_indent: int | None = None  # of the key whose scalar runs over the deeper lines that follow

    def open(self, row: int, text: str, *, continued: bool) -> Line:
        notes: list[str] = []
        text = self.normalise(text.rstrip("\r\n"), notes)
        text = self.strip_marks(text, continued)
        line = Line("shell", text, name=FOLDED if self.folds(text) else "") if continued else self.folded_or(row, text)
        line.notes = notes
        return line

    def folds(self, text: str) -> bool:
        if self.fold_indent is not None and indent(text) <= self.fold_indent:
            self.fold_indent = None
        return self.fold_indent is not None

    def folded_or(self, row: int, text: str) -> Line:
        if self.folds(text) and not ITEM.match(text):
            return Line("shell", text, name=FOLDED)
        line = self.structure(row, text)
        if line.kind == "skip" and opens_fold(text, line.name):
            self.fold_indent = indent(text)
        return line

    def normalise(self, text: str, notes: list[str]) -> str:
        if DASHES.search(text):
            notes.append("a long dash stands where -- is meant")
            text = DASHES.sub(r"\1--", text)
        straight = text.translate(QUOTES)
        if straight != text:
            notes.append("curly quotes stand where straight ones are meant")
        if straight.endswith((" ^", " `")):
            straight = straight[:-1] + "\\"
        return straight

    def strip_marks(self, text: str, continued: bool) -> str:
        mark = QUOTE_MARK.match(text)
        if mark and (self.all_quoted or not continued or text[mark.end() :].lstrip(" '\"").startswith("-")):
            text = text[mark.end() :]
        prompt = PROMPT.match(text) or GLUED_PROMPT.match(text)
        text = text[prompt.end() :] if prompt else text
        fence = FENCE.match(text)
        if fence and has_program(fence["rest"]):
            return END_OF_FENCE.sub("", fence["rest"])
        if not fence and not continued and "`" in text:
            inline = [found["code"] for found in INLINE_CODE.finditer(text) if has_program(found["code"])]
            if inline:
                return " ; ".join(inline)
        return text if fence else END_OF_FENCE.sub("", text)

    def structure(self, row: int, text: str) -> Line:
        if FENCE.match(text):
            return Line("skip")
        if self.in_flow or STRINGS.match(text):
            self.in_flow = self.in_flow and "]" not in text
            return Line("words", words=self.strings(row, text))
        docker = DOCKERFILE.match(text)
        if docker:
            rest = docker["rest"]
            return self.flow_or(row, rest, "shell") if rest.startswith("[") else Line("shell", rest)
        docker_env = DOCKERFILE_ENV.match(text)
        if docker_env:
            return Line("assign", docker_env["value"], name=docker_env["name"])
        unit = UNIT.match(text)
        if unit:
            return Line("shell", ("export " if unit["key"] == "Environment" else "") + unit["rest"])
        item = ITEM.match(text)
        if item:
            return self.item(row, item["rest"])
        mapping = MAPPING.match(text)
        if mapping:
            return self.mapping(row, mapping["key"], (mapping["value"] or "").strip())
        label = LABEL.match(text)
        return Line("shell", text[label.end() :] if label else text)

    def item(self, row: int, rest: str) -> Line:
        if BLOCK.match(rest):
            return Line("skip")
        if rest.startswith("["):
            return self.flow_or(row, rest, "item")
        mapping = MAPPING.match(rest)
        if mapping and not rest.startswith(("-", "'", '"')):
            return self.mapping(row, mapping["key"], (mapping["value"] or "").strip())
        name, equals, value = rest.strip("\"'").partition("=")
        if equals and ENV_NAME.match(name):
            return Line("assign", scalar(value), name=name)
        return Line("item", rest)

    def mapping(self, row: int, key: str, value: str) -> Line:
        if value.startswith("#"):
            value = ""
        if key == "name":
            self.env_name = scalar(value)
            return Line("skip")
        if key in ("value", "valueFrom") and self.env_name:
            name, self.env_name = self.env_name, ""
            if key == "valueFrom":
                return Line("unresolved_assign", value, name=name)
            return Line("assign", scalar(value), name=name)
        if not value or BLOCK.match(value):
            return Line("skip", name=key)
        if key == "image":
            self.images.append((row + 1, scalar(value)))
            return Line("skip")
        if key in COMMAND_KEYS:
            line = self.flow_or(row, value, "item")
            line.name = key
            return line
        if ENV_NAME.match(key):
            return Line("assign", scalar(value), name=key)
        return self.argument(row, key, value)

    def argument(self, row: int, key: str, value: str) -> Line:
        """``tensor-parallel-size: 8`` of a configuration file; another mapping is a label or no part of this."""
        dest = key.replace("-", "_")
        flag = fields("sglang").get(dest) or fields("vllm").get(dest)
        if flag is None or (dest == key and "_" not in key and key != "nnodes"):
            if re.search(r"\s--?[A-Za-z]|\b(?:sglang|vllm)\b", " " + value):
                return Line("shell", value)
            return Line("skip")
        given = scalar(value)
        spelled = literal("--" + dest.replace("_", "-"), row + 1)
        if given.lower() in ("true", "false") and not flag.takes_value:
            return Line("words", words=[spelled] if given.lower() == "true" else [])
        if flag.type == "list" and given.startswith("["):
            return Line("words", words=[spelled, *self.strings(row, given)])
        return Line("words", words=[spelled, literal(given, row + 1)])

    def flow_or(self, row: int, value: str, kind: Literal["item", "shell"]) -> Line:
        if value.startswith("["):
            self.in_flow = "]" not in value
            return Line("words", words=self.strings(row, value))
        return Line(kind, scalar(value) if value[:1] in "\"'" and value[-1:] == value[:1] else value)

    def strings(self, row: int, text: str) -> list[Word]:
        """Elements of a flow list, whole or a line of one."""
        try:
            loaded = json.loads(text.strip().rstrip(","))
        except (ValueError, RecursionError):
            loaded = None
        if isinstance(loaded, list):
            return [literal(str(element), row + 1) for element in loaded]
        found = []
        for match in STRING.finditer(text):
            if match[3] and match[3].startswith("#"):
                break
            value = match[1] if match[1] is not None else match[2] if match[2] is not None else match[3]
            found.append(literal(value.replace('\\"', '"') if match[1] is not None else value, row + 1))
        return found


def indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def opens_fold(text: str, key: str) -> bool:
    """A folded block, or a command's key with nothing behind it: the deeper lines that follow are one line."""
    rest = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    return bool(re.search(r"(?:^|[\s:-])>[+-]?$", rest)) or (key in COMMAND_KEYS and rest.endswith(":"))


def scalar(text: str) -> str:
    """Value of a YAML scalar: quotes and a trailing comment taken off."""
    text = text.strip()
    for quote in "\"'":
        if text.startswith(quote) and text.find(quote, 1) > 0:
            return text[1 : text.find(quote, 1)]
    return re.split(r"\s#", text, maxsplit=1)[0].strip()
