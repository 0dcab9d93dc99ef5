import timm
import torch

model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=4, num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(16):
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
