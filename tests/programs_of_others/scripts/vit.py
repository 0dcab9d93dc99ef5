import torch
from vit_pytorch import ViT

model = ViT(
    image_size=32, patch_size=8, num_classes=10, dim=64, depth=3, heads=4, mlp_dim=128, dropout=0.1, emb_dropout=0.1
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(16):
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
