"""The networks of Figure 13 and those that MikPoly adds: random weights in published sizes, no downloads."""

from dataclasses import dataclass, field
from typing import Any

SYSTEMS = ("vortex", "vortex_modules", "eager", "inductor", "onnxruntime")
"""Ways to run a network, in the order in which they are told: see eval.networks.systems."""
WARM_CALLS = 2
"""A call is warm after so many before it."""
LENGTHS = tuple(round(1 + 475 * step / 16) for step in range(17))
"""17 lengths from 1 to 476, as the paper's section 7.3 has."""
BATCHES, SIZES = (1, *range(4, 65, 4)), (64, 128, 224, 320, 448, 640)
"""Images of 224 x 224 in each of the 17 batches of the paper's section 7.1, and one image of every size."""

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A network, and the inputs it is run on: [batch, length] of tokens, or [batch, 3, height, width] of pixels."""

    name: str
    inputs: tuple[Extents, ...]
    first: tuple[Extents, ...]
    """Inputs that are run before anything is counted. The language models themselves ask whether the length is 1."""
    family: str = ""
    """Of a language model: what the classes of transformers begin with."""
    layers: str = "num_hidden_layers"
    """What its config calls the number of layers."""
    config: dict[str, Any] = field(default_factory=dict)


def language(name: str, family: str, layers: str = "num_hidden_layers", **config: Any) -> Network:
    """A model of transformers."""
    return Network(name, tuple((1, length) for length in LENGTHS), ((1, 1), (1, 60)), family, layers, config)


def vision(name: str) -> Network:
    """A network of eval.networks.vision."""
    inputs = tuple((batch, 3, 224, 224) for batch in BATCHES) + tuple((1, 3, size, size) for size in SIZES)
    return Network(name, tuple(dict.fromkeys(inputs)), ((1, 3, 96, 96),))


LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
ALBERT: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
"""Those of albert-base; the class's own defaults are those of the largest."""
NETWORKS = {
    network.name: network
    for network in (
        language("bert-base", "Bert"),
        language("bert-large", "Bert", **LARGE),
        language("gpt2", "GPT2", layers="n_layer", use_cache=False),
        language("distilbert", "DistilBert", layers="n_layers"),
        language("roberta", "Roberta"),
        language("albert", "Albert", **ALBERT),
        vision("alexnet"),
        vision("vgg16"),
        vision("resnet18"),
        vision("googlenet"),
    )
}
