import torch
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(
    vocab_size=128,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
    attention_probs_dropout_prob=0.0,
    num_labels=4,
)
model = BertForSequenceClassification(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(16):
    tokens, labels = torch.randint(0, 128, (8, 32)), torch.randint(0, 4, (8,))
    mask = torch.ones(8, 32)
    loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
