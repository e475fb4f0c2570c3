"""What passes over a kernel's text need to know of C."""

from __future__ import annotations


def arguments(text: str, opening: int) -> tuple[list[str], int]:
    """The arguments of a call whose parenthesis opens at `opening`, and the place behind the one that closes."""
    depth, start, found = 0, opening + 1, []
    for place in range(opening, len(text)):
        if text[place] in "([":
            depth += 1
        elif text[place] in ")]":
            depth -= 1
        if (depth == 1 and text[place] == ",") or not depth:
            found.append(text[start:place].strip())
            start = place + 1
        if not depth:
            return found, start
    raise ValueError(f"the parenthesis at {opening} is never closed: {text[opening : opening + 60]!r}")
