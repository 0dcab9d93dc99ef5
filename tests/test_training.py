"""Whole training runs from torch's own weights: the losses equal torch's, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster

STEPS = 50


def mlp(nn):
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def conv_net(nn):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def gpt(nn):
    lib = torch if nn is torch.nn else gt

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, dim=2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.ln2(x))

    class Gpt(nn.Module):
        def __init__(self, vocabulary=17, width=32, length=12):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block(width, 4) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(lib.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).flatten(0, 1)

    return Gpt()


def encoder_decoder(nn):
    class Translate(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(17, 16)
            self.both = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
            self.head = nn.Linear(16, 17)

        def forward(self, ids):
            x = self.tokens(ids)
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            return self.head(self.both(x, x, tgt_mask=mask, tgt_is_causal=True)).flatten(0, 1)

    return Translate()


def lstm(nn):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    return Last()


def _numbers(*shape):
    return lambda rng: rng.standard_normal(shape).astype(np.float32)


def _ids(*shape):
    return lambda rng: rng.integers(0, 17, shape)


#: the model, its inputs, the numbers of classes and targets, and the optimizer
RUNS = {
    "mlp": (mlp, _numbers(16, 20), (5, 16), ("SGD", {"lr": 0.1, "momentum": 0.9})),
    "conv": (conv_net, _numbers(8, 1, 8, 8), (5, 8), ("Adam", {"lr": 1e-3})),
    "gpt": (gpt, _ids(4, 12), (17, 48), ("AdamW", {"lr": 1e-3})),
    "encoder-decoder": (encoder_decoder, _ids(4, 9), (17, 36), ("AdamW", {"lr": 1e-3, "weight_decay": 0.1})),
    "lstm": (lstm, _numbers(6, 5, 4), (5, 6), ("RMSprop", {"lr": 1e-3})),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_losses_are_torchs(name, clip):
    make, inputs, (classes, targets), (optimizer, options) = RUNS[name]
    torch.manual_seed(0)
    with Cluster().client():
        theirs, ours = make(torch.nn), make(gt.nn)
        ours.load_state_dict(theirs.state_dict())
        a = getattr(torch.optim, optimizer)(theirs.parameters(), **options)
        b = getattr(gt.optim, optimizer)(ours.parameters(), **options)
        rng = np.random.default_rng(0)
        for step in range(STEPS):
            x, y = inputs(rng), rng.integers(0, classes, targets)
            losses = []
            for lib, model, opt in ((torch, theirs, a), (gt, ours, b)):
                opt.zero_grad()
                loss = lib.nn.functional.cross_entropy(model(lib.tensor(x)), lib.tensor(y))
                loss.backward()
                if clip:
                    lib.nn.utils.clip_grad_norm_(model.parameters(), clip)
                opt.step()
                losses.append(loss.item())
            assert losses[1] == pytest.approx(losses[0], abs=1e-5), step


def test_nothing_is_left_behind():
    """After a step the workers hold parameters and optimizer state, and nothing else."""
    cluster = Cluster()
    with cluster.client() as session:
        model = mlp(gt.nn)
        opt = gt.optim.AdamW(model.parameters())
        held = []
        for _ in range(4):
            gt.nn.functional.cross_entropy(model(gt.randn(8, 20)), gt.zeros(8, dtype=gt.int64)).backward()
            opt.step()
            opt.zero_grad()
            session.outbox.flush()
            cluster.settle()
            held.append(session.worker_stats()[0].client_tensors)
        assert held[1] == held[2] == held[3] == 3 * 6


def test_an_item_is_one_round_trip():
    cluster = Cluster()
    with cluster.client() as session:
        model = mlp(gt.nn)
        opt = gt.optim.SGD(model.parameters(), lr=0.1)
        waits = 0
        plain = session.connection.wait

        def counted(*args, **kwargs):
            nonlocal waits
            waits += 1
            return plain(*args, **kwargs)

        session.connection.wait = counted
        for _ in range(3):
            loss = gt.nn.functional.cross_entropy(model(gt.randn(8, 20)), gt.zeros(8, dtype=gt.int64))
            loss.backward()
            opt.step()
            opt.zero_grad()
            assert waits == 0
            loss.item()
            assert waits == 1
            waits = 0


def test_to_device_can_be_gone_through_again():
    with Cluster().client():
        loader = gt.to_device([np.ones((4, 2), "f")] * 3)
        assert len(loader) == 3
        assert [sum(1 for _ in loader) for _ in range(2)] == [3, 3]
        assert next(loader).tolist() == [[1, 1]] * 4


def test_functions_of_gt_cuda():
    assert not gt.cuda.is_available()
    assert gt.cuda.device_count() == 0
    with Cluster().client():
        gt.cuda.manual_seed_all(3)
        first = gt.rand(2).tolist()
        gt.cuda.manual_seed(3)
        assert gt.rand(2).tolist() == first
        gt.cuda.synchronize()
        gt.cuda.empty_cache()


def test_to_device():
    with Cluster().client():
        rng = np.random.default_rng(0)
        pulled = []

        def batches():
            for k in range(4):
                pulled.append(k)
                yield {"x": rng.random((2, 3)).astype(np.float32), "y": (torch.tensor([k]), "name", k)}

        seen = []
        for batch in gt.to_device(batches(), ahead=2):
            seen.append(batch["y"][0].item())
            assert isinstance(batch["x"], gt.Tensor)
            assert batch["y"][1] == "name"
            assert len(pulled) == min(seen[-1] + 3, 4)
        assert seen == [0, 1, 2, 3]
        data = torch.utils.data.TensorDataset(torch.arange(10.0).view(5, 2), torch.arange(5))
        for x, y in gt.to_device(torch.utils.data.DataLoader(data, batch_size=2)):
            assert x.shape[0] == y.shape[0]
