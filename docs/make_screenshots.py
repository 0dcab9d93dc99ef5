"""Writes docs/images/dashboard_*.png: the dashboard of a real training run. Needs Chromium.

python -m docs.make_screenshots
"""

from __future__ import annotations

import contextlib
import pathlib
import time

from tests.support.browser import Browser
from tests.support.processes import ROOT, System

IMAGES = ROOT / "docs" / "images"
#: name -> (width, height, dark, phone)
SIZES = {
    "light": (1280, 1010, False, False),
    "dark": (1280, 1010, True, False),
    "phone": (390, 844, False, True),
}
TRAINING = """
    gt.auto_shard()
    nn, F = gt.nn, gt.nn.functional
    hidden = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU())
    model = nn.Sequential(hidden, nn.Linear(512, 10))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
    x, y = gt.randn(768, 256), gt.randint(0, 10, (768,))
    while True:
        for _ in range(8):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        loss.item()
        time.sleep(0.1)
"""


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        system = System(stack, "--dashboard", "0")
        for _ in range(2):
            system.worker("--threads", "1")
        system.client(TRAINING)
        browser = stack.enter_context(Browser())
        browser.size(*SIZES["light"])
        browser.go(system.server.expect("dashboard:").split()[-1])
        browser.until("document.querySelectorAll('#hot .level').length > 0 && known.loads.length > 40", 300)
        for name, size in SIZES.items():
            browser.size(*size)
            time.sleep(3)  # bars grow, charts are drawn
            browser.screenshot(IMAGES / f"dashboard_{name}.png")
        browser.size(1280, 420)
        browser.js("zoom(0.03, 0.7)")
        time.sleep(2)
        browser.screenshot(IMAGES / "dashboard_zoom.png")
    for path in sorted(IMAGES.glob("dashboard_*.png")):
        print(path.relative_to(pathlib.Path.cwd()), path.stat().st_size)


if __name__ == "__main__":
    main()
