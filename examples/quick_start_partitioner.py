"""A model cut into subgraphs: what fuses, what can run at the same time, what is most expensive, where to cut it."""

import torch
from torch import nn
from torch.fx import symbolic_trace
from torch.fx.passes.shape_prop import ShapeProp

import torchatlas as atlas


def small_resnet() -> nn.Module:
    """Stands in for torchvision's where that is not installed, or its operators do not load."""

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = (nn.Conv2d(size, size, 3, padding=1, bias=False) for _ in range(2))
            self.bn1, self.bn2, self.relu = nn.BatchNorm2d(size), nn.BatchNorm2d(size), nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)

    stem = (nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = (Block(64) for _ in range(4))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))


try:
    from torchvision.models import resnet18

    name, model = "ResNet-18", resnet18(weights=None).eval()
except (ImportError, RuntimeError):
    name, model = "a small ResNet (torchvision does not load)", small_resnet().eval()

traced = symbolic_trace(model)
ShapeProp(traced).propagate(torch.randn(1, 3, 224, 224))

print(f"--- Partition of {name}\n")
report = atlas.GraphPartitioner().partition(traced)
print(report)

print("\n--- Concurrency\n")
print(atlas.ConcurrencyAnalyzer().analyze(report))

print("\n--- Top 5 compute-intensive operations\n")
for number, subgraph in enumerate(report.top(5, by="flops"), 1):
    share = 100 * subgraph.flops / report.total_flops
    print(f"{number}. {subgraph.node_name}: {subgraph.flops / 1e9:.3f} GFLOPs ({share:.1f} %), {subgraph.pattern}")
    print(f"   {subgraph.recommended_bottleneck.value}; {subgraph.partition_reason}")

print("\n--- Put together again\n")
example = torch.randn(1, 3, 224, 224)
with torch.no_grad():
    same = torch.equal(report.extract()(example), model(example))
print(f"{len(report)} pieces run one after the other and give the model's output, bit for bit: {same}")

print("\n--- Next steps\n")
print('GraphPartitioner("op") or ("module"): other ways to cut; device="a100-80gb": bounds of a real device')
print('ConcurrencyAnalyzer(by="roofline"): the critical path in seconds')
print("atlas.pipeline_stages(traced, 4): where to cut it for four devices")
print("torchatlas partition --help: the same on the command line")
