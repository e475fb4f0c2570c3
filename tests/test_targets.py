"""A library of this machine is found again by the hash of what was measured, which is that of the spec made of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from vortex import probe, targets
from vortex.errors import UnknownNameError
from vortex.machine import read_machine
from vortex.specs import load_spec, what_if


@pytest.fixture
def remembered() -> Path:
    """What was measured of this machine."""
    probe.native()
    return targets.cache_directory() / probe.file_name(read_machine())


@pytest.mark.usefixtures("remembered")
def test_the_remembered_fingerprint_is_that_of_the_spec() -> None:
    found = targets.target("native")
    assert (found.name, found.is_cpu) == ("native", True)
    assert found.fingerprint == targets.remembered_fingerprint() == found.spec.fingerprint()


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
def test_damage_is_no_fingerprint(
    remembered: Path, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path))
    assert targets.remembered_fingerprint() is None
    (tmp_path / remembered.name).write_text(remembered.read_text())
    assert targets.remembered_fingerprint() is not None
    (tmp_path / remembered.name).write_text(damage)
    assert targets.remembered_fingerprint() is None


def test_names_and_specs() -> None:
    spec = load_spec("xeon-8255c")
    assert targets.target("xeon-8255c").fingerprint == targets.target(spec).fingerprint == spec.fingerprint()
    assert targets.target(what_if(spec, {"cores": spec.cores // 2})).fingerprint != spec.fingerprint()
    assert not targets.target("a100").is_cpu
    with pytest.raises(UnknownNameError, match="did you mean"):
        targets.target("xeon")


@pytest.mark.usefixtures("remembered")
def test_this_machine_is_named_without_its_models() -> None:
    script = "import sys; from vortex.targets import target; target('native'); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
