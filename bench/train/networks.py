"""The trained tensors of four well-known networks, and the arithmetic of each layer for one image of 224 x 224."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""The widths of its convolutions; 0 halves the image."""
RESNET50_BLOCKS = ((3, 64, 256, 56), (4, 128, 512, 28), (6, 256, 1024, 14), (3, 512, 2048, 7))
"""Blocks, inner and outer width, side of the image."""
INCEPTIONS = (
    (28, 192, 64, 96, 128, 16, 32, 32),
    (28, 256, 128, 128, 192, 32, 96, 64),
    (14, 480, 192, 96, 208, 16, 48, 64),
    (14, 512, 160, 112, 224, 24, 64, 64),
    (14, 512, 128, 128, 256, 24, 64, 64),
    (14, 512, 112, 144, 288, 32, 64, 64),
    (14, 528, 256, 160, 320, 32, 128, 128),
    (7, 832, 256, 160, 320, 32, 128, 128),
    (7, 832, 384, 192, 384, 48, 128, 128),
)
"""GoogLeNet's, from its paper: side, input; 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, behind the pool."""


@dataclass(frozen=True)
class Layer:
    """The shapes of a layer's tensors, and its multiplications and additions for one image, there and back."""

    shapes: tuple[tuple[int, ...], ...]
    operations: float

    @property
    def numbers(self) -> int:
        return sum(_size(shape) for shape in self.shapes)


def named(name: str) -> list[Layer]:
    """Return the layers of `AlexNet`, `VGG16`, `ResNet-50` or `GoogLeNet`, from the image on."""
    made = {"AlexNet": alexnet, "VGG16": vgg16, "ResNet-50": resnet50, "GoogLeNet": googlenet}
    return made[name]()


def shapes(layers: Sequence[Layer]) -> list[tuple[int, ...]]:
    return [shape for layer in layers for shape in layer.shapes]


def alexnet() -> list[Layer]:
    convolutions = [
        _convolution(3, 64, 11, 55),
        _convolution(64, 192, 5, 27),
        _convolution(192, 384, 3, 13),
        _convolution(384, 256, 3, 13),
        _convolution(256, 256, 3, 13),
    ]
    return [*convolutions, _linear(256 * 6 * 6, 4096), _linear(4096, 4096), _linear(4096, 1000)]


def vgg16() -> list[Layer]:
    layers, channels, side = [], 3, 224
    for width in VGG16:
        if width:
            layers.append(_convolution(channels, width, 3, side))
            channels = width
        else:
            side //= 2
    return [*layers, _linear(512 * 7 * 7, 4096), _linear(4096, 4096), _linear(4096, 1000)]


def resnet50() -> list[Layer]:
    layers, channels = [_convolution(3, 64, 7, 112, norm=True)], 64
    for blocks, inner, outer, side in RESNET50_BLOCKS:
        for block in range(blocks):
            layers += [
                _convolution(channels, inner, 1, side, norm=True),
                _convolution(inner, inner, 3, side, norm=True),
                _convolution(inner, outer, 1, side, norm=True),
            ]
            if block == 0:
                layers.append(_convolution(channels, outer, 1, side, norm=True))
            channels = outer
    return [*layers, _linear(2048, 1000)]


def googlenet() -> list[Layer]:
    layers = [_convolution(3, 64, 7, 112), _convolution(64, 64, 1, 56), _convolution(64, 192, 3, 56)]
    for side, into, one, reduced3, three, reduced5, five, pooled in INCEPTIONS:
        layers += [
            _convolution(into, one, 1, side),
            _convolution(into, reduced3, 1, side),
            _convolution(reduced3, three, 3, side),
            _convolution(into, reduced5, 1, side),
            _convolution(reduced5, five, 5, side),
            _convolution(into, pooled, 1, side),
        ]
    return [*layers, _linear(1024, 1000)]


def _convolution(into: int, out: int, kernel: int, side: int, *, norm: bool = False) -> Layer:
    """Return a convolution with its bias, or with the two tensors of a batch normalization."""
    weight = (out, into, kernel, kernel)
    return Layer((weight, (out,), (out,)) if norm else (weight, (out,)), 6.0 * _size(weight) * side * side)


def _linear(into: int, out: int) -> Layer:
    return Layer(((out, into), (out,)), 6.0 * into * out)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
