"""What a library is built for: enough of a spec to find the library again, without making the spec where it can."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vortex import probe
from vortex.cache import cache_directory, digest
from vortex.machine import read_machine

if TYPE_CHECKING:  # Else imported where a spec is made: its validation takes longer than opening a library.
    from vortex.specs import Spec


@dataclass(frozen=True)
class Target:
    """A device as `hw=` names it; `fingerprint` is that of its spec."""

    hw: str | Path | Spec
    name: str
    is_cpu: bool
    fingerprint: str

    @cached_property
    def spec(self) -> Spec:
        from vortex.specs import load_spec

        return load_spec(self.hw)


def target(hw: str | Path | Spec) -> Target:
    """The target that `hw` names; raises as `specs.load_spec` does."""
    if isinstance(hw, str) and hw == probe.NATIVE and (known := remembered_fingerprint()):
        return Target(hw, hw, True, known)
    from vortex.hardware import HardwareSpec
    from vortex.specs import load_spec

    spec = load_spec(hw)
    return Target(spec, spec.name, isinstance(spec, HardwareSpec), spec.fingerprint())


def remembered_fingerprint() -> str | None:
    """That of the spec of this machine, where it was measured before."""
    try:
        text = (cache_directory() / probe.file_name(read_machine())).read_text()
        return digest(json.loads(text)["spec"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
