"""The part of docs/performance.md that is generated: every result, what loses first."""

import re
from collections.abc import Iterable
from pathlib import Path

from eval.reproduce.pages import drawn, explained, made, page_of
from eval.reproduce.registry import RESULTS, result
from eval.reproduce.result import Options
from eval.reproduce.run import lines_of, states_of

BEGIN, END = "<!-- paper:begin, written by `python -m eval.paper all --draw --docs` -->", "<!-- paper:end -->"
LOSSES, ABSENT = "### Where it loses, result by result", "### Not measured yet"


def deeper(blocks: Iterable[str], by: int) -> list[str]:
    """Blocks of a page with their headings so much deeper."""
    return [f"{'#' * by}{block}" if block.startswith("#") else block for block in blocks]


def sections(text: str, level: str) -> dict[str, str]:
    """The parts of a page whose heading, of that level, begins with the name of a result; by that name."""
    parts = re.split(rf"^{level} ({'|'.join(RESULTS)})\b", text, flags=re.MULTILINE)
    return {name: f"{level} {name}{rest}".strip() for name, rest in zip(parts[1::2], parts[2::2], strict=True)}


def summary(folder: Path, pictures: Path, options: Options, before: str) -> str:
    """The section; pictures go to `pictures`. Of results without lines here stays what the page told `before`."""
    losses, told, absent = [], [], []
    old = sections(before.partition(ABSENT)[0], "###")
    old_losses = sections(before.partition(LOSSES)[2].partition("\n### ")[0], "####")
    for name in RESULTS:
        found = result(name)
        lines = lines_of(found, folder)
        if not lines:
            if name not in old:
                absent.append(f"- {name}, {found.title}: `python -m eval.paper {found.same_lines_as or name}`")
            told += [old[name]] if name in old else []
            losses += [old_losses[name]] if name in old_losses else []
            continue
        page = page_of(found, lines)
        told += [f"### {name}: {found.title}", *explained(found)]
        picture = f"paper-{name}.png"
        if drawn(found, page, pictures):
            (pictures / f"{name}.png").replace(pictures / picture)
            told.append(f"![{found.title}]({pictures.name}/{picture})")
        told += [*deeper(page.blocks, 1), made(found, lines, states_of(found, options, folder))]
        if page.losses:
            losses += [f"#### {name}", *deeper(page.losses, 2)]
    parts = [
        "## The paper's results, reproduced",
        "Each table and figure of the paper by one command (`python -m eval.paper NAME`).",
    ]
    if losses:
        parts += [LOSSES, *losses]
    if absent:
        told += [ABSENT, "\n".join(absent)]
    return "\n\n".join([*parts, *told])


def write(docs: Path, folder: Path, options: Options) -> None:
    """Puts the summary between the markers of performance.md; ValueError where they are missing."""
    page = docs / "performance.md"
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: expected the lines {BEGIN!r} and {END!r}; add them where the summary belongs")
    pictures = docs / "performance"
    pictures.mkdir(exist_ok=True)
    page.write_text(f"{before}{begin}\n\n{summary(folder, pictures, options, old)}\n\n{end}{after}")
