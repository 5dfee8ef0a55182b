"""Data sets of texts: ShareGPT's conversations, the custom inputs of serving benchmarks, AIPerf's inputs.json.

None of them has times: requests come as ``workload.arrival`` says, or from ``workload.concurrency`` clients. A
conversation is a session: the text of a user is what a turn adds to the prompt, the text of the model is how long its
answer is.

    ShareGPT, SGLang custom      {"conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}
                                 ("conversation", "role" and "content" are read as well)
    chat requests                {"messages": [{"role": "user", "content": ".."}], "max_tokens": 64}
    vLLM custom                  {"prompt": "..", "output_tokens": 64}
    AIPerf inputs.json           {"data": [{"session_id": "..", "payloads": [one request a turn]}]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ppsim.workload.lines import Line, TraceRow, shown

ASKS = ("human", "user", "system", "developer", "tool", "function", "observation")
ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
OUTPUTS = ("output_tokens", "max_tokens", "max_completion_tokens", "output_length", "expected_output_len")


@dataclass(frozen=True, slots=True)
class Turn:
    """New tokens of the prompt, and of the answer (0: nothing says how long it is)."""

    prompt: int
    output: int


@dataclass(slots=True)
class Dialogues:
    """Reads records of texts; counts on the way what is told at the end."""

    count: Callable[[str], int]
    num_empty: int = 0  # messages without text
    num_answers_first: int = 0
    num_parts: int = 0  # of messages that are no text
    rows: list[TraceRow] = field(default_factory=list)

    def read(self, line: Line, record: Mapping[str, Any]) -> list[list[Turn]]:
        """The sessions of a record, each as its turns. Raises TraceError."""
        if "data" in record:
            return [self.payloads(line, session) for session in listed(line, "data", record["data"])]
        for key in ("conversations", "conversation"):
            if key in record:
                return [self.spoken(line, key, record[key])]
        return [[self.request(line, record)]]

    def spoken(self, line: Line, key: str, messages: object) -> list[Turn]:
        """Alternating texts; several of one side in a row are one text."""
        turns: list[Turn] = []
        prompt = output = 0
        is_answered = False
        for name, text in self.messages(line, key, messages):
            if name in ANSWERS and not prompt:
                self.num_answers_first += 1  # the beginning of the conversation is not there: it is a given text
                prompt += self.tokens(text)
            elif name in ANSWERS:
                output, is_answered = output + self.tokens(text), True
            elif name in ASKS:
                if is_answered:
                    turns.append(Turn(prompt, output))
                    prompt, output, is_answered = 0, 0, False
                prompt += self.tokens(text)
            else:
                raise line.error(key, f"a message of {shown(name)}; expected one of {', '.join((*ASKS, *ANSWERS))}")
        turns.append(Turn(prompt, output))
        return turns

    def request(self, line: Line, record: Mapping[str, Any], before: int = 0) -> Turn:
        """One request: ``messages`` or ``prompt``, and its output where a field says it."""
        if isinstance(record.get("body"), dict):
            record = record["body"]
        if "messages" in record:
            texts = list(self.messages(line, "messages", record["messages"]))
            prompt = sum(self.tokens(text) for _, text in texts[before:])
        else:
            key = next((name for name in ("prompt", "text", "input") if name in record), None)
            if key is None:
                raise line.error("prompt", f"is missing; the line has {shown(', '.join(record))}")
            text = record[key]
            if isinstance(text, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in text):
                prompt = len(text)  # token ids
            elif isinstance(text, str):
                prompt = self.tokens(text)
            else:
                raise line.error(key, f"expected a text, got {shown(text)}")
        for name in OUTPUTS:
            if record.get(name) is not None:
                value = record[name]
                if isinstance(value, bool) or not isinstance(value, int):
                    raise line.error(name, f"expected an integer, got {shown(value)}")
                return Turn(prompt, line.length(name, value))
        if isinstance(record.get("completion"), str):
            return Turn(prompt, self.tokens(record["completion"]))
        return Turn(prompt, 0)

    def payloads(self, line: Line, session: object) -> list[Turn]:
        """The turns of a session of AIPerf. A turn whose messages begin with those of the turn before has them as
        its history, and the answer that stands between them is no new text."""
        if not isinstance(session, dict):
            raise line.error("data", f"expected a session, got {shown(session)}")
        turns: list[Turn] = []
        earlier: list[Any] = []
        for payload in listed(line, "payloads", session.get("payloads")):
            if not isinstance(payload, dict):
                raise line.error("payloads", f"expected a request, got {shown(payload)}")
            messages = payload.get("messages")
            history = 0
            if isinstance(messages, list) and earlier and messages[: len(earlier)] == earlier:
                history = len(earlier)
                while history < len(messages) and said_by(messages[history]) in ANSWERS:
                    history += 1
            turns.append(self.request(line, payload, history))
            earlier = messages if isinstance(messages, list) else []
        return turns

    def messages(self, line: Line, key: str, value: object) -> Iterator[tuple[str, str]]:
        for message in listed(line, key, value):
            if not isinstance(message, dict):
                raise line.error(key, f"expected a message, got {shown(message)}")
            text = message.get("value", message.get("content"))
            if isinstance(text, list):  # parts: texts, images
                parts = [part.get("text") if isinstance(part, dict) else None for part in text]
                self.num_parts += sum(not isinstance(part, str) for part in parts)
                text = "".join(part for part in parts if isinstance(part, str))
            if text is None:
                text = ""
            if not isinstance(text, str):
                raise line.error(key, f"expected a text, got {shown(text)}")
            name = said_by(message)
            if name is None:
                raise line.error(key, f"a message has neither 'from' nor 'role': {shown(message)}")
            yield name, text

    def tokens(self, text: str) -> int:
        """Of a message: at least one, as a chat template adds some."""
        found = self.count(text)
        self.num_empty += not found
        return max(1, found)

    def told(self, name: str) -> tuple[str, ...]:
        told = []
        if self.num_empty:
            told.append(f"{name}: {self.num_empty} messages without text count as one token each")
        if self.num_answers_first:
            told.append(
                f"{name}: {self.num_answers_first} answers stand before any question; they are part of a prompt"
            )
        if self.num_parts:
            told.append(f"{name}: {self.num_parts} parts of messages are no text (images, calls) and are not counted")
        return tuple(told)


def said_by(message: object) -> str | None:
    found = message.get("from", message.get("role")) if isinstance(message, dict) else None
    return found.lower() if isinstance(found, str) else None


def listed(line: Line, key: str, value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise line.error(key, f"expected a list with something in it, got {shown(value)}")
    return value


def session_rows(line: Line, turns: list[Turn], first: int, group: int, num_turns: int | None) -> list[TraceRow]:
    """The rows of a session, numbered from ``first``. Raises TraceError for a turn that is too long."""
    rows = []
    for n, turn in enumerate(turns[:num_turns]):
        line.length("prompt", turn.prompt)
        output = line.length("output", turn.output) if turn.output else 1
        follows = first + n - 1 if n else -1
        rows.append(
            TraceRow(first + n, line.number, 0, turn.prompt, output, None, not turn.output, follows, (group, n))
        )
    return rows
