"""Trains a small GPT-2 with Hugging Face's Trainer, saves it, and prints the losses."""

import sys

import torch

sys.modules["torchvision"] = None  # not needed here, and its wheels cannot be imported beside a torch without CUDA
import transformers  # noqa: E402

folder = sys.argv[1]
torch.manual_seed(0)
drops = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
config = transformers.GPT2Config(
    vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1, **drops
)
model = transformers.GPT2LMHeadModel(config)
tokens = torch.randint(2, 64, (40, 16))
arguments = transformers.TrainingArguments(
    output_dir=folder,
    max_steps=20,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
dataset = [{"input_ids": row, "labels": row} for row in tokens]
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=dataset)
trainer.train()
trainer.save_model(folder)
restored = transformers.GPT2LMHeadModel.from_pretrained(folder)
print("device", next(model.parameters()).device.type)
print("losses", *[f"{entry['loss']:.6f}" for entry in trainer.state.log_history if "loss" in entry])
print("norms", *[f"{entry['grad_norm']:.5f}" for entry in trainer.state.log_history if "grad_norm" in entry])
print("saved", torch.equal(restored.lm_head.weight, model.lm_head.weight.cpu()))
