"""The documentation: Python in it runs, commands and links in it exist."""

import argparse
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "eval").glob("*.md")]
)
names = [str(page.relative_to(ROOT)) for page in PAGES]
pages = pytest.mark.parametrize("page", PAGES, ids=names)


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """Line and text of the fenced blocks in one of these languages."""
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(page.read_text().count("\n", 0, match.start(2)) + 1, match[2]) for match in found if match[1] in languages]


def shell_commands(page: Path) -> list[str]:
    """Every command line in shell blocks."""
    shell = "".join(text for _, text in blocks(page, "sh", "bash", "shell", "console"))
    shell = shell.replace("\\\n", " ")
    lines = [line.partition(" #")[0].strip().removeprefix("$ ") for line in shell.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def commands(page: Path) -> list[str]:
    """Those, and every `vortex ...`, `make ...` or `python -m ...` in running text."""
    inline = re.findall(r"`((?:vortex|make|python -m) [^`\n]+)`", page.read_text())
    return [*shell_commands(page), *inline]


@cache
def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vortex", *command.split(), "--help"], capture_output=True, text=True, timeout=60
    )
    return done.stdout if done.returncode == 0 else ""


class Reached(Exception):
    """`main` has its parser ready, and would now parse and begin."""


@cache
def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser of `python -m module`, whose work is not begun."""

    def stop(parser: argparse.ArgumentParser, *given: object) -> None:
        raise Reached(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(Reached) as reached:
            import_module(module).main()
    parser = reached.value.args[0]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


@needs.a_compiler
@pytest.mark.parametrize("name", [name for name, page in zip(names, PAGES, strict=True) if blocks(page, "python")])
def test_python_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page run one after the other, as a reader would type them; those with torch where it is."""
    page = ROOT / name
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, text in blocks(page, "python"):
        if "import torch" in text and find_spec("torch") is None:
            continue
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)


@pages
def test_commands_exist(page: Path):
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(page):
        words = command.split()
        if words[0] == "vortex":
            known = help_of("")
            assert f" {words[1]} " in known or words[1].startswith("-"), command
            subcommand = " ".join(word for word in words[1:3] if word in (words[1], "list", "clear"))
            usage = help_of(subcommand) if not words[1].startswith("-") else known
            options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
            assert all(re.search(rf"{option}\b", usage) for option in options), command
        elif words[0] == "make":
            assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words[1:] if "=" not in word), (
                command
            )
        elif words[:2] == ["python", "-m"] and words[2].startswith("eval"):
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), command
            known = parser_of(words[2]).format_help()
            options = [word.partition("=")[0] for word in words[3:] if re.match(r"--?[a-z]", word)]
            assert all(re.search(rf"(?<![\w-]){option}(?![\w-])", known) for option in options), command
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), command


@pytest.mark.parametrize("name", [name for name, page in zip(names, PAGES, strict=True) if shell_commands(page)])
def test_commands_of_the_evaluation_parse(name: str, capsys: pytest.CaptureFixture[str]):
    """Whole lines of shell blocks: options, what they are given, and what is demanded."""
    for command in shell_commands(ROOT / name):
        words = shlex.split(re.split(r"[|>;&]", command)[0])
        if words[:2] == ["python", "-m"] and words[2].startswith("eval"):
            try:
                parser_of(words[2]).parse_args(words[3:])
            except SystemExit:
                pytest.fail(f"{command}: {capsys.readouterr().err}")


@pages
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


@pages
def test_code_that_is_named_exists(page: Path):
    """Paths of files in running text."""
    for path in re.findall(r"`((?:vortex|eval|tests|docs|hwspecs)/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / path).exists(), path
