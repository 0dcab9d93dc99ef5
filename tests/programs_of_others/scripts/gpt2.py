import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=3, n_head=4, attn_pdrop=0.0))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(16):
    tokens = torch.randint(0, 128, (8, 32))
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
