"""Where in a JSON text an output is, as far as the way to its end depends on it."""

from __future__ import annotations


class JsonPlace:
    """In a string or not; whether a value may begin, or has begun, here."""

    __slots__ = ("_is_escaped", "in_scalar", "in_string", "starts_value")

    def __init__(self) -> None:
        self.in_string = False
        self.in_scalar = False  # a number or a word
        self.starts_value = True
        self._is_escaped = False

    def copy(self) -> JsonPlace:
        other = JsonPlace()
        other.in_string, other.in_scalar = self.in_string, self.in_scalar
        other.starts_value, other._is_escaped = self.starts_value, self._is_escaped
        return other

    def take(self, text: bytes) -> None:
        """Go on after a text."""
        for byte in text:
            self._take(byte)

    def before_value(self, text: bytes) -> bytes:
        """Return as much of a text as comes before the next value; all of it where none begins."""
        ahead = self.copy()
        for index, byte in enumerate(text):
            ahead._take(byte)
            if ahead.starts_value and byte in b" [":
                return text[: index + 1]
        return text

    def tails(self, text: bytes, limit: int) -> list[int]:
        """Return where, in a way from here, what is around this value goes on or ends: first
        where the next one follows, then at each closing bracket."""
        found: list[int] = []
        ahead, depth, has_comma = self.copy(), 0, False
        for index, byte in enumerate(text):
            if not ahead.in_string:
                if byte in b"{[":
                    depth += 1
                elif byte in b"}]":
                    if depth == 0:
                        found.append(index)
                        has_comma = False
                    else:
                        depth -= 1
                elif byte == 0x2C and depth == 0 and not has_comma:
                    found.append(index)
                    has_comma = True
            ahead._take(byte)
            if len(found) == limit:
                break
        return found

    def _take(self, byte: int) -> None:
        if self.in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif byte == 0x5C:
                self._is_escaped = True
            elif byte == 0x22:
                self.in_string = False
        elif byte == 0x22:
            self.in_string, self.starts_value, self.in_scalar = True, False, False
        elif byte != 0x20:
            self.starts_value = byte in b":[,"
            self.in_scalar = byte not in b":[,]{}"
