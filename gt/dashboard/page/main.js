// Buttons, keys, the mouse, and the clock that draws.

history.replaceState(null, "", location.pathname);  // the key of the link is used up
byId("pause").onclick = () => pause(!stream.paused);
byId("zoom-in").onclick = () => zoom(0.5);
byId("zoom-out").onclick = () => zoom(2);
addEventListener("keydown", (event) => {
  if (event.target !== document.body && event.target !== byId("stream")) return;
  const actions = {
    " ": () => pause(!stream.paused), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
  };
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
});

const canvas = byId("stream");
canvas.addEventListener("wheel", (event) => {
  if (event.ctrlKey || Math.abs(event.deltaY) < Math.abs(event.deltaX)) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max(event.offsetX / canvas.clientWidth, 0), 0.999));
}, { passive: false });
let dragged = null;
canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointerup", () => { dragged = null; });
canvas.addEventListener("pointermove", (event) => {
  if (dragged !== null && Math.abs(event.clientX - dragged) > 2) {
    pan((dragged - event.clientX) / canvas.clientWidth);
    dragged = event.clientX;
  }
  showTip(event);
});
canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
canvas.addEventListener("dblclick", () => pause(false));

let drawn = 0;
function frame(now) {
  if (now - drawn > 45) {
    drawn = now;
    drawStream();
  }
  requestAnimationFrame(frame);
}
addEventListener("resize", () => { if (known.load) drawMemory(); });
darkScheme.addEventListener("change", panelsChanged);
connect();
requestAnimationFrame(frame);
