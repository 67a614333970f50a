"""Control flow that depends on data, and programs that run in unusual places."""

import threading

import torch
from torch import Generator, Tensor, nn

from zoo.specimen import Call, specimen


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(3, 2)
        self.negative = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.positive(x)
        return self.negative(x)


@specimen("if x.sum() > 0: the branch not taken leaves no trace", fakes=False)
def data_dependent_branch() -> Call:
    return Branch(), (torch.randn(2, 3),), {}


class Ponders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)
        self.halt = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        certainty = 0.0
        while certainty < 1.5:
            x = torch.tanh(self.step(x))
            certainty += self.halt(x).sigmoid().mean().item()
        return x


@specimen("a loop whose length is read with .item()", fakes=False)
def data_dependent_loop() -> Call:
    return Ponders(), (torch.randn(2, 3),), {}


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(3, 6)
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            if rows.numel():
                y.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return y


@specimen("a mixture of experts: shapes that depend on data, some experts never called", fakes=False)
def mixture_of_experts() -> Call:
    return MixtureOfExperts(), (torch.randn(2, 3),), {}


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return mean + torch.randn_like(mean) * (log_variance / 2).exp()


@specimen("a variational layer: noise drawn from the global generator")
def noise_in_forward() -> Call:
    return Noise(), (torch.randn(2, 4),), {}


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.generator = Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.rand(3, generator=self.generator)


@specimen("noise drawn from the model's own generator: an argument that no file can hold")
def own_generator() -> Call:
    return OwnGenerator(), (torch.randn(2, 3),), {}


class InThread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        results: list[Tensor] = []
        worker = threading.Thread(target=lambda: results.append(self.left(x)))
        worker.start()
        worker.join()
        return results[0] + self.right(x)


@specimen("half of the model runs in a thread of its own: dispatch modes do not follow it")
def worker_thread() -> Call:
    return InThread(), (torch.randn(2, 3),), {}


class SwallowsErrors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(5, 2)
        self.narrow = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.wide(x.relu())
        except RuntimeError:
            return self.narrow(x)


@specimen("an operator that fails and is forgiven: its module never returned")
def swallowed_error() -> Call:
    return SwallowsErrors(), (torch.randn(2, 3),), {}


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(self.linear(x))
        return y, self.norm(y.float())


@specimen("autocast to bfloat16: casts nobody wrote, a weight cast once and reused")
def autocast_bfloat16() -> Call:
    return Autocast(), (torch.randn(2, 4),), {}


class InferenceInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(3, 2)
        self.student = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            target = self.teacher(x).softmax(-1)
        return -(self.student(x).log_softmax(-1) * target.clone()).sum()


@specimen("a teacher in inference mode: tensors without version counters")
def inference_mode_inside() -> Call:
    return InferenceInside(), (torch.randn(2, 3),), {}
