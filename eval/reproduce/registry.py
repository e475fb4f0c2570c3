"""The results by name, and in which module each is. Modules are imported when their result is asked for."""

from importlib import import_module

from eval.reproduce.result import Result

RESULTS = {
    "table5": "eval.reproduce.vendors:TABLE5",
    "table6": "eval.reproduce.sampled:TABLE6",
    "table7": "eval.reproduce.analyzers:TABLE7",
    "fig3": "eval.reproduce.sampled:FIG3",
    "fig12": "eval.reproduce.vendors:FIG12",
    "fig13": "eval.reproduce.networks:FIG13",
    "fig14": "eval.reproduce.overheads:FIG14",
    "fig15": "eval.reproduce.selection:FIG15",
    "fig16": "eval.reproduce.backends:FIG16",
    "polymerize": "eval.reproduce.regions:POLYMERIZE",
    "dense": "eval.reproduce.methods:DENSE",
    "ranges": "eval.reproduce.methods:RANGES",
    "mikpoly": "eval.reproduce.methods:MIKPOLY",
    "hidet": "eval.reproduce.methods:HIDET",
    "ablation": "eval.reproduce.methods:ABLATION",
    "static": "eval.reproduce.static:STATIC",
    "regret": "eval.reproduce.accuracy:REGRET",
    "model": "eval.reproduce.accuracy:MODEL",
    "overhead": "eval.reproduce.overheads:OVERHEAD",
    "offline": "eval.reproduce.overheads:OFFLINE",
}
"""`name: module:attribute`, in the order in which they are run and told."""


def result(name: str) -> Result:
    """The result of this name; KeyError with the known ones where there is none."""
    if name not in RESULTS:
        raise KeyError(f"no result {name!r}; known: {', '.join(RESULTS)}")
    module, _, attribute = RESULTS[name].partition(":")
    found: Result = getattr(import_module(module), attribute)
    if found.name != name:
        raise ValueError(f"{RESULTS[name]} calls itself {found.name}, not {name}")
    return found
