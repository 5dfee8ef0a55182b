"""Whole-number arithmetic of the shell, as in ``$((CHUNK * 4))``.

The rules are those of the shell: C's operators and precedence, division and remainder towards zero, ``010`` is octal,
``0x10`` hexadecimal, a name may stand without its ``$``. What would need a running shell (assignments, unset names,
division by zero) raises ValueError, and the caller keeps the text as a hole.
"""

from __future__ import annotations

import re
from collections.abc import Callable

TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)|\$?(?P<name>[A-Za-z_]\w*)|\$\{(?P<braced>[A-Za-z_]\w*)\}"
    r"|(?P<op>\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^~!?:()]))"
)
LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
MAX_BITS = 63
MAX_DEPTH = 40


def evaluate(text: str, value_of: Callable[[str], int]) -> int:
    """The value of an expression. Raises ValueError for what is no expression, or has no value."""
    return Expression(text, value_of).whole()


def number(text: str) -> int:
    """A number as the shell writes it."""
    low = text.strip().lower()
    sign = -1 if low.startswith("-") else 1
    digits = low.lstrip("+-")
    if not re.fullmatch(r"0x[0-9a-f]+|\d+", digits) or len(digits) > 20:
        raise ValueError(f"{text!r} is no whole number")
    octal = len(digits) > 1 and digits.startswith("0") and not digits.startswith("0x")
    return sign * (int(digits, 8) if octal else int(digits, 0))


class Expression:
    """One pass by precedence; each method returns the value of what it has read."""

    def __init__(self, text: str, value_of: Callable[[str], int]) -> None:
        self.value_of = value_of
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0
        place, text = 0, text.strip()
        while place < len(text):
            found = TOKEN.match(text, place)
            if not found:
                raise ValueError(f"{text[place:]!r} is no arithmetic")
            kind = found.lastgroup or ""
            self.tokens.append(("name" if kind == "braced" else kind, found[kind]))
            place = found.end()

    def whole(self) -> int:
        value = self.choice()
        if self.at < len(self.tokens):
            raise ValueError(f"{self.tokens[self.at][1]!r} is not expected here")
        return value

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] == "op" else ""

    def choice(self) -> int:
        """``condition ? one : other``."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("brackets go too deep")
        value = self.level(0)
        if self.peek() == "?":
            self.at += 1
            one = self.choice()
            self.expect(":")
            other = self.choice()
            value = one if value else other
        self.depth -= 1
        return value

    def level(self, n: int) -> int:
        if n == len(LEVELS):
            return self.power()
        value = self.level(n + 1)
        while self.peek() in LEVELS[n]:
            operator = self.peek()
            self.at += 1
            value = binary(operator, value, self.level(n + 1))
        return value

    def power(self) -> int:
        base = self.unary()
        if self.peek() != "**":
            return base
        self.at += 1
        exponent = self.power()
        if exponent < 0 or (abs(base) > 1 and exponent > MAX_BITS):
            raise ValueError("the exponent is out of range")
        return bounded(base**exponent)

    def unary(self) -> int:
        operator = self.peek()
        if operator in ("-", "+", "~", "!"):
            self.at += 1
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ValueError("too many signs")
            value = self.unary()
            self.depth -= 1
            return {"-": -value, "+": value, "~": ~value, "!": int(not value)}[operator]
        if operator == "(":
            self.at += 1
            value = self.choice()
            self.expect(")")
            return value
        if self.at >= len(self.tokens) or operator:
            raise ValueError("a number is missing")
        kind, text = self.tokens[self.at]
        self.at += 1
        return number(text) if kind == "number" else self.value_of(text)

    def expect(self, operator: str) -> None:
        if self.peek() != operator:
            raise ValueError(f"{operator!r} is missing")
        self.at += 1


def binary(operator: str, a: int, b: int) -> int:
    if operator in ("/", "%"):
        if b == 0:
            raise ValueError("division by 0")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - b * quotient
    if operator in ("<<", ">>") and not 0 <= b <= MAX_BITS:
        raise ValueError("the shift is out of range")
    table: dict[str, Callable[[], int]] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "<<": lambda: a << b,
        ">>": lambda: a >> b,
        "&": lambda: a & b,
        "|": lambda: a | b,
        "^": lambda: a ^ b,
        "&&": lambda: int(bool(a) and bool(b)),
        "||": lambda: int(bool(a) or bool(b)),
        "==": lambda: int(a == b),
        "!=": lambda: int(a != b),
        "<": lambda: int(a < b),
        "<=": lambda: int(a <= b),
        ">": lambda: int(a > b),
        ">=": lambda: int(a >= b),
    }
    return bounded(table[operator]())


def bounded(value: int) -> int:
    if abs(value) >= 1 << MAX_BITS:
        raise ValueError("the value does not fit into 64 bits")
    return value
