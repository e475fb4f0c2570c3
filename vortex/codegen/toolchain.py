"""The build-time releases that are known to work together."""

from importlib.metadata import PackageNotFoundError, version

from vortex.errors import ToolchainError

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
"""With a later ffi release every `Schedule.tensorize` call of this TVM dies with a segmentation fault."""


def check_versions() -> dict[str, str]:
    """The installed releases, refused before TVM is imported when they are not the pinned pair."""
    found = {}
    for name in PINNED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if found != PINNED:
        wanted = " ".join(f"'{name}=={release}'" for name, release in PINNED.items())
        have = ", ".join(f"{name} {release}" for name, release in found.items())
        raise ToolchainError(f"compiling needs {wanted}; found {have}; run `pip install {wanted}`")
    return found
