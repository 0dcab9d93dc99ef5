// The task stream: a lane for each worker, bars coloured by family, moves below. Drag, wheel and buttons look around.

const LANE_HEIGHT = 34, MOVES_HEIGHT = 9, GAP = 9, LEFT = 74, AXIS = 24;
const SPANS = [1e6, 2e6, 5e6, 10e6, 20e6, 60e6];   // lengths of the live view
const LAG_US = 700e3;                              // events arrive a little later than they happen
const MIN_SPAN = 20;

const stream = { paused: false, span: 10e6, end: 0, held: [], closeView: null, hover: null };

function pause(on) {
  if (on === stream.paused) return;
  stream.paused = on;
  if (on) {
    stream.end = viewEnd(true);
  } else {
    stream.closeView = null;
    stream.span = SPANS.find((span) => span >= stream.span) || SPANS[SPANS.length - 1];
    const held = stream.held;
    stream.held = [];
    for (const message of held) receive[message.kind](message);
  }
  byId("pause").textContent = on ? "Go on" : "Pause";
  byId("pause").setAttribute("aria-pressed", String(on));
  panelsChanged();
}

const viewEnd = (live) => (stream.paused && !live ? stream.end : serverTime() - LAG_US);

// Zoom by a factor, and keep the time under the cursor (a share of the width) where it is.
function zoom(factor, share = 1) {
  if (!stream.paused && factor > 1 && stream.span >= SPANS[SPANS.length - 1]) return;
  if (!stream.paused && share === 1) {
    const at = SPANS.indexOf(stream.span) + (factor > 1 ? 1 : -1);
    if (at >= 0) { stream.span = SPANS[Math.min(at, SPANS.length - 1)]; return; }
  }
  pause(true);
  const fixed = stream.end - stream.span * (1 - share);
  stream.span = Math.min(Math.max(stream.span * factor, MIN_SPAN), SPANS[SPANS.length - 1]);
  stream.end = fixed + stream.span * (1 - share);
  lookClosely();
}

function pan(share) {
  pause(true);
  stream.end += share * stream.span;
  lookClosely();
}

let timer = 0;
function lookClosely() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (stream.paused && stream.span < 10e6) askCloseView(stream.end - stream.span * 1.5, stream.end + stream.span * 0.5);
  }, 120);
}

function lanesOf(worker) {
  const view = stream.closeView, begun = stream.end - stream.span;
  const close = stream.paused && view && view.begun <= begun && view.ended >= stream.end;
  return (close ? view : known).lanes.get(worker) || [[], []];
}

// The first bar that may reach into the view. Bars are sorted by their start; long ones begin earlier.
function firstVisible(bars, begun) {
  let low = 0, high = bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle][START] < begun - 2e6) low = middle + 1; else high = middle;
  }
  return low;
}

function drawStream() {
  const workers = workerNumbers(), colours = themeColours();
  const height = Math.max(1, workers.length) * (LANE_HEIGHT + MOVES_HEIGHT + GAP) + AXIS;
  const { context, width } = prepare(byId("stream"), height);
  const end = viewEnd(), begun = end - stream.span;
  const view = { context, begun, end, left: width < 500 ? 30 : LEFT, width, perPixel: 0 };
  view.perPixel = stream.span / (width - view.left);
  context.font = "12px system-ui, sans-serif";
  drawAxis(view, height - AXIS, colours);
  workers.forEach((worker, i) => {
    const top = i * (LANE_HEIGHT + MOVES_HEIGHT + GAP), [bars, moves] = lanesOf(worker);
    context.fillStyle = colours.text;
    context.textBaseline = "middle";
    context.fillText(view.left < LEFT ? `w${worker}` : `worker ${worker}`, 0, top + LANE_HEIGHT / 2);
    context.fillStyle = colours.track;
    context.fillRect(view.left, top, width - view.left, LANE_HEIGHT);
    drawLane(view, bars, top, LANE_HEIGHT);
    drawLane(view, moves, top + LANE_HEIGHT + 1, MOVES_HEIGHT - 1);
  });
  byId("span").textContent = duration(stream.span);
}

// Bars wider than two pixels are drawn as they are. Of narrower ones, each column of pixels shows how much of its time
// each family took.
function drawLane(view, bars, top, height) {
  const { context, begun, end, left, width, perPixel } = view;
  const families = Math.max(1, known.families.length), columns = Math.ceil(width - left);
  const spent = new Float32Array(columns * families), wide = [];
  for (let i = firstVisible(bars, begun); i < bars.length && bars[i][START] < end; i++) {
    const bar = bars[i];
    if (bar[END] < begun) continue;
    const x0 = (bar[START] - begun) / perPixel, x1 = (bar[END] - begun) / perPixel;
    if (bar[COUNT] === 1 && x1 - x0 >= 2) { wide.push([bar, x0, x1]); continue; }
    const first = Math.max(0, Math.floor(x0)), last = Math.min(columns - 1, Math.floor(x1));
    const share = bar[BUSY] / Math.max(bar[END] - bar[START], 1);
    for (let column = first; column <= last; column++) {
      const inside = Math.min(x1, column + 1) - Math.max(x0, column);
      spent[column * families + bar[FAMILY]] += share * inside;
    }
  }
  const fills = known.families.map(familyColour);
  for (let column = 0; column < columns; column++) {
    let y = top + height;
    for (let family = 0; family < families; family++) {
      const part = Math.min(spent[column * families + family] * height, y - top);
      if (part < 0.3) continue;
      context.fillStyle = fills[family];
      context.fillRect(left + column, y - part, 1, part);
      y -= part;
    }
  }
  for (const [bar, x0, x1] of wide) drawWide(context, bar, left + Math.max(x0, 0), left + Math.min(x1, columns), top, height);
}

function drawWide(context, bar, x0, x1, top, height) {
  const family = known.families[bar[FAMILY]];
  context.fillStyle = familyColour(family);
  context.fillRect(x0, top, Math.max(x1 - x0 - 0.6, 0.6), height);
  const text = (known.labels.get(bar[LABEL]) || family).split("(")[0];
  if (height > 20 && x1 - x0 > 30 && context.measureText(text).width < x1 - x0 - 8) {
    context.fillStyle = LIGHT.has(family) ? "#222b3a" : "#fff";
    context.fillText(text, x0 + 5, top + height / 2);
  }
}

function drawAxis(view, top, colours) {
  const { context, begun, end, left, width, perPixel } = view;
  const rough = perPixel * 110, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  context.textBaseline = "alphabetic";
  for (let k = 0; k * step <= end - begun; k++) {
    const x = Math.round(width - (k * step) / perPixel) - 0.5;
    context.fillStyle = colours.line;
    context.fillRect(x, 0, 1, top + 4);
    context.fillStyle = colours.quiet;
    const text = k ? `−${duration(k * step)}` : stream.paused ? "0" : "now";
    context.textAlign = k ? "center" : "right";
    if (x - left > 20) context.fillText(text, k ? x : width, top + 18);
  }
  context.textAlign = "left";
}

// -- the bar under the cursor

function barAt(x, y) {
  const workers = workerNumbers(), row = LANE_HEIGHT + MOVES_HEIGHT + GAP, canvas = byId("stream");
  const worker = workers[Math.floor(y / row)], left = canvas.clientWidth < 500 ? 30 : LEFT;
  if (worker === undefined || x < left) return null;
  const perPixel = stream.span / (canvas.clientWidth - left), begun = viewEnd() - stream.span;
  const time = begun + (x - left) * perPixel, bars = lanesOf(worker)[y % row > LANE_HEIGHT ? 1 : 0];
  let best = null;
  for (let i = firstVisible(bars, time); i < bars.length && bars[i][START] <= time + perPixel; i++) {
    if (bars[i][END] >= time - perPixel) best = bars[i];
  }
  return best;
}

function showTip(event) {
  const bar = barAt(event.offsetX, event.offsetY), tip = byId("tip");
  tip.hidden = !bar;
  if (!bar) return;
  const family = known.families[bar[FAMILY]], single = bar[COUNT] === 1;
  const title = single ? known.labels.get(bar[LABEL]) || family : `${plain(bar[COUNT])} instructions, most of the time ${family}`;
  const site = known.sites.get(`${bar[CLIENT]}/${bar[SITE]}`);
  const time = single ? duration(bar[END] - bar[START]) : `${duration(bar[BUSY])} of ${duration(bar[END] - bar[START])}`;
  const lines = [`${family} · ${time} · worker ${bar[WORKER]} · client ${bar[CLIENT]}`, ...(site ? [site] : [])];
  tip.replaceChildren(make("b", {}, title), ...lines.map((line) => make("div", {}, line)));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}
