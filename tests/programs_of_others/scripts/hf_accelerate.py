"""A training loop with Hugging Face's accelerate; prints the losses."""

import accelerate
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
data = torch.utils.data.TensorDataset(torch.randn(80, 8), torch.randn(80, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
losses = []
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss).item())
print("device", next(accelerator.unwrap_model(model).parameters()).device.type)
print("losses", *[f"{loss:.6f}" for loss in losses])
