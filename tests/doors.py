"""What the sources of the doors say, for the tests of what Python makes of it."""

import re
from pathlib import Path

import vortex

RUNTIME = Path(vortex.__file__).parent / "runtime"


def refusals(door: str, first: str) -> int:
    """How many numbers a door refuses by: those of all doors, then its own, of which `first` is the first."""
    shared = re.search(r"enum \{\s*NOT_A_TENSOR = 1,(.*?),\s*FIRST_OWN", (RUNTIME / "refusals.h").read_text(), re.S)
    own = re.search(rf"enum \{{\s*{first} = FIRST_OWN(.*?)\}};", (RUNTIME / door).read_text(), re.S)
    assert shared is not None and own is not None
    return 2 + shared[1].count(",") + 1 + own[1].count(",")
