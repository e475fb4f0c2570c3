"""AlexNet, VGG-16, ResNet-18 and GoogLeNet as plain modules: the layers of the papers, for images of any size.

Where a paper's classifier wants a map of one size, adaptive pooling makes it, as model zoos do.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

CLASSES = 1000


def convolution(channels: int, filters: int, size: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """A convolution and a ReLU."""
    return nn.Sequential(nn.Conv2d(channels, filters, size, stride, padding), nn.ReLU(inplace=True))


def alexnet() -> nn.Module:
    """Krizhevsky, One weird trick for parallelizing convolutional neural networks (2014)."""
    return nn.Sequential(
        convolution(3, 64, 11, 4, 2),
        nn.MaxPool2d(3, 2),
        convolution(64, 192, 5, 1, 2),
        nn.MaxPool2d(3, 2),
        convolution(192, 384, 3, 1, 1),
        convolution(384, 256, 3, 1, 1),
        convolution(256, 256, 3, 1, 1),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 36, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, CLASSES),
    )


def vgg16() -> nn.Module:
    """Simonyan, Zisserman, Very deep convolutional networks (2015), configuration D."""
    layers: list[nn.Module] = []
    channels = 3
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(convolution(channels, filters, 3, 1, 1))
            channels = filters
        layers.append(nn.MaxPool2d(2, 2))
    fully = (nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *fully, nn.Linear(4096, CLASSES))


def normalized(channels: int, filters: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, then batch normalization."""
    inner = nn.Conv2d(channels, filters, size, stride, size // 2, bias=False)
    return nn.Sequential(inner, nn.BatchNorm2d(filters))


class Residual(nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = normalized(channels, filters, 3, stride), normalized(filters, filters, 3)
        same = stride == 1 and channels == filters
        self.shortcut = nn.Identity() if same else normalized(channels, filters, 1, stride)

    def forward(self, x: Any) -> Any:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + self.shortcut(x))


def resnet18() -> nn.Module:
    """He, Zhang, Ren, Sun, Deep residual learning (2016)."""
    layers: list[nn.Module] = [normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(channels, filters, stride), Residual(filters, filters, 1)]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class Inception(nn.Module):
    """Four paths side by side."""

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = widths
        self.paths = nn.ModuleList(
            (
                convolution(channels, one, 1),
                nn.Sequential(convolution(channels, before_three, 1), convolution(before_three, three, 3, 1, 1)),
                nn.Sequential(convolution(channels, before_five, 1), convolution(before_five, five, 5, 1, 2)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(channels, pooled, 1)),
            )
        )

    def forward(self, x: Any) -> Any:
        return torch.cat([path(x) for path in self.paths], 1)


INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet() -> nn.Module:
    """Szegedy et al., Going deeper with convolutions (2015), Table 1, without its auxiliary classifiers."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1), convolution(64, 64, 1)]
    layers += [convolution(64, 192, 3, 1, 1), nn.MaxPool2d(3, 2, 1)]
    channels = 192
    for place, stage in enumerate(INCEPTIONS):
        for widths in stage:
            layers.append(Inception(channels, widths))
            channels = widths[0] + widths[2] + widths[4] + widths[5]
        if place < 2:
            layers.append(nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(1024, CLASSES))
