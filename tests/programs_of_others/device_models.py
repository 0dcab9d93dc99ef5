"""Models of other people's packages, small and with random weights, for the device ``gtx`` of torch.

An entry makes the model, a batch, and the loss of the model on the batch. Nothing of the packages is changed. Dropout
is off: the device's random numbers are GT's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

#: a model, a batch, and the loss of the model on the batch
Training = tuple[torch.nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]


@dataclass(frozen=True)
class Model:
    name: str
    #: the installed package that it comes from
    package: str
    make: Callable[[Any], Training]
    #: relative difference of losses that is accepted
    tolerance: float = 1e-5
    #: Then the optimizer is SGD with small steps. The gradient of a bias before a batch norm is zero but for rounding,
    #: and Adam would divide it by its size; and with so few images, larger steps magnify the rounding of torch itself.
    has_batch_norm: bool = False

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def training(self) -> Training:
        """The same model and batch each time."""
        torch.manual_seed(0)
        return self.make(importlib.import_module(self.package))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        if self.has_batch_norm:
            return torch.optim.SGD(parameters, lr=2e-5, momentum=0.9)
        return torch.optim.AdamW(parameters, lr=1e-3)


# -- language ------------------------------------------------------------------------------

VOCABULARY = 64
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens() -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (2, 16))


def _language(model: torch.nn.Module) -> Training:
    return model, (tokens(),), lambda m, x: m(input_ids=x, labels=x).loss


def gpt2(transformers: Any) -> torch.nn.Module:
    config = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 1}
    drops = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **config, **drops))


def llama(transformers: Any) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **SHAPE, num_key_value_heads=2))


def mixtral(transformers: Any) -> torch.nn.Module:
    experts = {"num_key_value_heads": 2, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **SHAPE, **experts))


def bert(transformers: Any) -> torch.nn.Module:
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **SHAPE, **NO_DROPOUT))


def _t5(transformers: Any) -> Training:
    config = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    start = {"decoder_start_token_id": 0}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCABULARY, **config, **start))
    return model, (tokens(), tokens()), lambda m, x, y: m(input_ids=x, labels=y).loss


def _whisper(transformers: Any) -> Training:
    parts = {"attention_heads": 4, "ffn_dim": 64, "layers": 2}
    config = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in parts.items()}
    config |= {"vocab_size": VOCABULARY, "d_model": 32, "num_mel_bins": 16}
    config |= {"max_source_positions": 20, "max_target_positions": 32}
    config |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    config |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**config))
    return model, (torch.randn(2, 16, 40), tokens()), lambda m, x, y: m(input_features=x, labels=y).loss


# -- images --------------------------------------------------------------------------------


def _images(model: torch.nn.Module, size: int = 32, batch: int = 4) -> Training:
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    return model, (images, labels), lambda m, x, y: functional.cross_entropy(m(x), y)


def _vit(transformers: Any) -> Training:
    config = transformers.ViTConfig(**SHAPE, **NO_DROPOUT, image_size=32, patch_size=8, num_labels=10)
    model, batch, _ = _images(transformers.ViTForImageClassification(config))
    return model, batch, lambda m, x, y: m(pixel_values=x, labels=y).loss


def _resnet(torchvision: Any) -> Training:
    return _images(torchvision.models.resnet18(num_classes=10), 64)


def _timm(name: str, size: int = 32, **options: Any) -> Callable[[Any], Training]:
    return lambda timm: _images(timm.create_model(name, num_classes=10, **options), size)


_SWIN = {"window_size": 4, "embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8), "drop_path_rate": 0.0}
_CONVNEXT = {"depths": (1, 1, 2, 1), "dims": (8, 16, 32, 64)}


def _unet(diffusers: Any) -> Training:
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    blocks = {"down_block_types": down, "up_block_types": up, "block_out_channels": (16, 32), "layers_per_block": 1}
    model = diffusers.UNet2DModel(sample_size=16, norm_num_groups=8, attention_head_dim=8, **blocks)
    noisy, noise = torch.randn(2, 2, 3, 16, 16)
    steps = torch.tensor([3, 700])
    return model, (noisy, steps, noise), lambda m, x, t, y: functional.mse_loss(m(x, t).sample, y)


# -- without a package ---------------------------------------------------------------------


class Tagger(torch.nn.Module):
    """An LSTM that names the class of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.recurrent = torch.nn.LSTM(16, 32, num_layers=2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(x))[0])


def _lstm(torch: Any) -> Training:
    labels = torch.randint(0, 10, (2, 8))
    return (
        Tagger(),
        (tokens()[:, :8], labels),
        lambda m, x, y: functional.cross_entropy(m(x).flatten(0, 1), y.flatten()),
    )


MODELS = (
    Model("LSTM", "torch", _lstm),
    Model("GPT-2", "transformers", lambda package: _language(gpt2(package))),
    Model("Llama", "transformers", lambda package: _language(llama(package))),
    Model("Mixtral", "transformers", lambda package: _language(mixtral(package))),
    Model("BERT", "transformers", lambda package: _language(bert(package))),
    Model("T5", "transformers", _t5),
    Model("Whisper", "transformers", _whisper),
    Model("ViT", "transformers", _vit),
    Model("ViT of timm", "timm", _timm("vit_tiny_patch16_224", img_size=32, depth=2)),
    Model("Swin", "timm", _timm("swin_tiny_patch4_window7_224", 64, img_size=64, **_SWIN)),
    Model("ConvNeXt", "timm", _timm("convnext_atto", **_CONVNEXT)),
    Model("ResNet-18", "torchvision", _resnet, 1e-3, has_batch_norm=True),
    Model("EfficientNet", "timm", _timm("efficientnet_b0", 64, drop_path_rate=0.0), 1e-3, has_batch_norm=True),
    Model("MobileNetV3", "timm", _timm("mobilenetv3_small_050", 64), 1e-3, has_batch_norm=True),
    Model("diffusion UNet", "diffusers", _unet),
)
