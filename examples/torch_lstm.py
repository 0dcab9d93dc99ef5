"""A plain PyTorch program: an LSTM learns a text by characters. It knows nothing of GT.

``gt run examples/torch_lstm.py`` runs it on GT's workers; ``python examples/torch_lstm.py`` on torch itself.
"""

import argparse
import pathlib
import time

import torch
from torch import nn

TEXT = pathlib.Path(__file__).parent / "data" / "carroll.txt"


class CharacterModel(nn.Module):
    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(x))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=41)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    text = TEXT.read_text()
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    model = CharacterModel(len(alphabet), arguments.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    started = time.perf_counter()
    for step in range(arguments.steps):
        starts = torch.randint(0, len(codes) - 9, (16,))
        windows = torch.stack([codes[i : i + 9] for i in starts.tolist()]).to(device)
        scores = model(windows[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == arguments.steps - 1:
            print(f"step {step:3}  loss {loss.item():.3f}")
    print(f"{time.perf_counter() - started:.1f} s on {model.head.weight.device}")


if __name__ == "__main__":
    main()
