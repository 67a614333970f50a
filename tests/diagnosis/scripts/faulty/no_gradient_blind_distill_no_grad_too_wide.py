"""The student's encoder is run inside the torch.no_grad() block meant for the teacher, so only the student's head
ever learns."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


def make_data(n):
    x = torch.randn(n, 8)
    y = (x[:, 0] * x[:, 1] > 0).long() * 2 + (x[:, 2] + x[:, 3] > 0).long()
    return x, y


def train_teacher(teacher, x, y, steps=60):
    opt = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        opt.step()
    return teacher.eval()


@torch.no_grad()
def accuracy(model, x, y):
    return round((model(x).argmax(1) == y).float().mean().item(), 3)


def kd_loss(student_logits, teacher_logits, y, T=2.0, alpha=0.7):
    soft = (
        F.kl_div(F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean")
        * T
        * T
    )
    return alpha * soft + (1 - alpha) * F.cross_entropy(student_logits, y)


def distill(teacher, student, x_all, y_all, steps=60):
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for step in range(steps):
        sel = torch.randint(0, len(x_all), (128,))
        x, y = x_all[sel], y_all[sel]
        with torch.no_grad():
            teacher_logits = teacher(x)
            student_feat = student.encoder(x)  # finds: no-gradient
        loss = kd_loss(student.head(student_feat), teacher_logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print("step", step, "kd loss", round(loss.item(), 4))


if __name__ == "__main__":
    torch.manual_seed(55)
    x, y = make_data(600)
    teacher = train_teacher(Classifier(64), x, y)
    student = Classifier(16)
    distill(teacher, student, x, y)
    print("teacher acc", accuracy(teacher, x, y), "student acc", accuracy(student, x, y))
