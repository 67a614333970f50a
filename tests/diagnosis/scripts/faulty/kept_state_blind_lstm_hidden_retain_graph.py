"""The LSTM state is carried from batch to batch without detach, so backward runs through the graphs of all earlier
batches, whose weights were already changed by the optimizer."""

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(10)
np.random.seed(10)


class LSTMForecaster(nn.Module):
    def __init__(self, input_size=1, hidden_size=20, num_layers=1):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
        self.linear = nn.Linear(hidden_size, 1)

    def init_hidden(self, batch_size):
        return (
            torch.zeros(self.num_layers, batch_size, self.hidden_size),
            torch.zeros(self.num_layers, batch_size, self.hidden_size),
        )

    def forward(self, x, hidden):
        out, hidden = self.lstm(x, hidden)
        return self.linear(out), hidden


# long noisy sine wave cut in consecutive windows
series = np.sin(np.arange(0, 60, 0.1)) + 0.05 * np.random.randn(600)
series = torch.from_numpy(series.astype(np.float32)).view(4, -1, 1)  # 4 streams
window = 15

model = LSTMForecaster()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(3):
    hidden = model.init_hidden(4)
    for start in range(0, series.size(1) - window - 1, window):
        x = series[:, start : start + window]
        y = series[:, start + 1 : start + window + 1]
        optimizer.zero_grad()
        output, hidden = model(x, hidden)
        loss = criterion(output, y)
        # without retain_graph I get "Trying to backward through the graph a second time"
        loss.backward(retain_graph=True)  # finds: kept-state
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"Epoch: {epoch} Loss: {loss.item():.5f}")
