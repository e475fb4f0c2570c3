"""What the commands of the evaluation have in common: how their help and their figures read."""

import argparse


class _Help(argparse.HelpFormatter):
    """Adds the default to what an option says, where there is one and the text does not speak of it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        told = action.default in (None, False, argparse.SUPPRESS) or "default" in text
        if told or not action.option_strings:
            return text
        values = action.default if isinstance(action.default, list) else [action.default]
        return f"{text} (default: {' '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)})"


def shown(value: float) -> str:
    """Counts in full, measurements with four digits."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def command(document: str) -> argparse.ArgumentParser:
    """The parser of a module whose documentation begins "`python -m eval.name`: what it does."; the rest follows."""
    first, _, rest = document.strip().partition("\n\n")
    name, _, what = " ".join(first.split()).partition(": ")
    return argparse.ArgumentParser(
        prog=name.strip("`"),
        description=what[0].upper() + what[1:],
        epilog=rest.replace("%", "%%") or None,
        formatter_class=_Help,
    )
