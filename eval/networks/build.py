"""Networks as modules of PyTorch, and inputs for them."""

from importlib import import_module
from typing import Any

import torch
from torch import nn

from eval.networks import vision
from eval.networks.models import NETWORKS, Extents

SMALL_LAYERS = 2


class Encoded(nn.Module):
    """The last hidden state of a model of transformers.

    `masked` gives it a mask that says what none does, that every token counts: without one it looks for several texts
    in the tokens, by operations that the exporter to ONNX does not know.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.masked = model, False

    def forward(self, tokens: Any) -> Any:
        mask = torch.ones_like(tokens) if self.masked else None
        return self.model(tokens, attention_mask=mask).last_hidden_state


def made(name: str, small: bool) -> nn.Module:
    """The network with weights that are the same in every process; `small` language models have few layers."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    if not network.family:
        return getattr(vision, name)().eval()
    transformers = import_module("transformers")
    config = network.config | ({network.layers: SMALL_LAYERS} if small else {})
    make, configure = (getattr(transformers, network.family + kind) for kind in ("Model", "Config"))
    return Encoded(make(configure(**config))).eval()


def input_of(extents: Extents, seed: int) -> Any:
    """Tokens or pixels."""
    generator = torch.Generator().manual_seed(seed)
    if len(extents) == 2:
        return torch.randint(0, 1000, extents, generator=generator)
    return torch.randn(extents, generator=generator)
