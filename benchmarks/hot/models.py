"""The models, written once in plain ``nn`` code that runs on torch and GT. None has dropout, so that losses agree."""

from __future__ import annotations

from typing import Any


def convnet(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 8 * 8, 10)),
    )


def resnet18(lib: Any, classes: int) -> Any:
    """He et al. 2015, as torchvision has it: four stages of two blocks."""
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = nn.Identity()
            if stride > 1:
                projection = nn.Conv2d(inner, outer, 1, stride=stride, bias=False)
                self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outer))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm1(self.conv1(x)))
            return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    stem = (nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [Block(*sizes) for a, b, stride in stages for sizes in ((a, b, stride), (b, b, 1))]
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1), *blocks, *pool, nn.Linear(512, classes))


def _attention(lib: Any, width: int, heads: int) -> Any:
    """Self-attention without a mask."""
    nn, functional = lib.nn, lib.nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).reshape(batch, length, width))

    return Attention()


def _mlp(lib: Any, width: int) -> Any:
    return lib.nn.Sequential(lib.nn.Linear(width, 4 * width), lib.nn.GELU(), lib.nn.Linear(4 * width, width))


def bert(lib: Any, layers: int, width: int, vocabulary: int, length: int) -> Any:
    """An encoder that normalises after each part, and predicts the token at every position."""
    nn, heads = lib.nn, width // 64

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mlp = _attention(lib, width, heads), _mlp(lib, width)
            self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

        def forward(self, x: Any) -> Any:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))

    class Bert(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.norm = nn.LayerNorm(width, eps=1e-12)
            self.layers = nn.Sequential(*[Layer() for _ in range(layers)])
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
            self.head = nn.Linear(width, vocabulary)

        def forward(self, ids: Any) -> Any:
            x = self.norm(self.tokens(ids) + self.places.weight[: ids.shape[1]])
            return self.head(self.transform(self.layers(x)))

    return Bert()


def vit(lib: Any, layers: int, width: int, image: int, patch: int, classes: int) -> Any:
    """Dosovitskiy et al. 2020: patches by a convolution, a class token, layers that normalise first."""
    nn, heads = lib.nn, width // 64

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mlp = _attention(lib, width, heads), _mlp(lib, width)
            self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Vit(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, stride=patch)
            self.first = nn.Parameter(lib.zeros(1, 1, width))
            self.places = nn.Parameter(lib.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
            self.layers = nn.Sequential(*[Layer() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            patches = self.patches(x).flatten(2).transpose(1, 2)
            first = self.first.to(patches.dtype).expand(patches.shape[0], 1, width)
            x = lib.cat([first, patches], dim=1) + self.places
            return self.head(self.norm(self.layers(x))[:, 0])

    return Vit()


def lstm(lib: Any, width: int, vocabulary: int) -> Any:
    """A language model of two recurrent layers."""
    nn = lib.nn

    class Lstm(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
            self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers(self.tokens(ids))[0])

    return Lstm()


def decoder(lib: Any, layers: int, width: int, vocabulary: int, length: int, batch: int) -> Any:
    """A GPT that decodes one token a call, with keys and values of all positions in buffers of a fixed size.

    ``forward(ids, position)``: the tokens, and their position as a tensor of one element, so that no shape and no
    number changes from call to call. Returns the likeliest next tokens, and their scores.
    """
    nn, functional, heads = lib.nn, lib.nn.functional, width // 64

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = _mlp(lib, width)
            self.register_buffer("keys", lib.zeros(batch, heads, length, 64))
            self.register_buffer("values", lib.zeros(batch, heads, length, 64))

        def forward(self, x: Any, position: Any, mask: Any) -> Any:
            q, k, v = self.qkv(self.norm1(x)).view(batch, 1, 3, heads, 64).permute(2, 0, 3, 1, 4).unbind(0)
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            y = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
            x = x + self.out(y.transpose(1, 2).reshape(batch, 1, width))
            return x + self.mlp(self.norm2(x))

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("steps", lib.arange(length))

        def forward(self, ids: Any, position: Any) -> tuple[Any, Any]:
            mask = (self.steps <= position).view(1, 1, 1, length)
            x = self.tokens(ids) + self.places(position)
            for layer in self.layers:
                x = layer(x, position, mask)
            scores, next_ids = self.head(self.norm(x)).max(dim=-1)
            return next_ids, scores

    return Decoder()
