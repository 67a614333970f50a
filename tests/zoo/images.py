"""Convolutions and what surrounds them."""

import torch
from torch import Tensor, nn

from zoo.specimen import Call, specimen


@specimen("convolution and batch norm in training: running statistics written with no mark in the schema")
def conv_batchnorm_training() -> Call:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    return model, (torch.randn(2, 3, 6, 6),), {}


@specimen("the same layers in eval: running statistics read, not written")
def conv_batchnorm_eval() -> Call:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    return model.eval(), (torch.randn(2, 3, 6, 6),), {}


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


@specimen("a ResNet block: skip connection, in-place add, one in-place ReLU module called twice")
def residual_inplace_relu() -> Call:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return model, (torch.randn(2, 3, 6, 6),), {}


@specimen("depthwise then pointwise: MACs divided by the groups")
def depthwise_conv() -> Call:
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1)), (torch.randn(1, 4, 6, 6),), {}


@specimen("groups, dilation, stride and uneven padding in one call")
def grouped_dilated_conv() -> Call:
    model = nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(2, 0), dilation=(2, 1), groups=2)
    return model, (torch.randn(1, 4, 9, 7),), {}


@specimen("transposed convolution with output padding: MACs counted from the input's size")
def transposed_conv() -> Call:
    model = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)
    return model, (torch.randn(1, 3, 4, 4),), {}


@specimen("convolution in one dimension, padding by name")
def conv1d_same() -> Call:
    return nn.Conv1d(3, 4, 3, padding="same"), (torch.randn(2, 3, 8),), {}


@specimen("convolution in three dimensions and a three-dimensional pool")
def conv3d() -> Call:
    return nn.Sequential(nn.Conv3d(2, 3, 2), nn.MaxPool3d(2)), (torch.randn(1, 2, 4, 5, 5),), {}


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(4, 2, 1)
        self.expand = nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


@specimen("squeeze and excite: a side branch that scales its own source by broadcasting")
def squeeze_excite() -> Call:
    return SqueezeExcite(), (torch.randn(2, 4, 5, 5),), {}


class DenseBlock(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2 + index, 1, 1) for index in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, dim=1)))
        return torch.cat(features, dim=1)


@specimen("DenseNet: every cat reads all earlier features")
def large_fan_in_cat() -> Call:
    return DenseBlock(12), (torch.randn(1, 2, 3, 3),), {}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.up(torch.relu(self.down(x)))], dim=1))


@specimen("U-Net: a long skip from before the downsampling to after the upsampling")
def unet_long_skip() -> Call:
    return UNet(), (torch.randn(1, 2, 6, 6),), {}


@specimen("channels-last memory: strides that are not those of the shape")
def channels_last() -> Call:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4))
    return model, (torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),), {}
