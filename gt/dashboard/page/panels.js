// Everything beside the task stream: cards, workers, memory, clients, hot paths, tensors, the log.

const workerNumbers = () => (known.load ? known.load.workers.map((worker) => worker.worker) : []);

function panelsChanged() {
  const state = byId("state");
  state.className = known.lost ? "state bad" : stream.paused ? "state paused" : "state";
  state.textContent = known.lost ? "no connection" : stream.paused ? "paused" : "live";
  state.title = known.lost;
  byId("stream-note").textContent = streamNote();
  if (!known.load) return;
  showCards(known.load);
  showWorkers(known.load);
  showClients(known.load);
  drawMemory();
}

function streamNote() {
  if (known.lost) return known.lost;
  if (known.load && !known.load.operator) return "only shares: this dashboard has no operator's token";
  if (known.load && !known.load.workers.length) return "no worker is connected";
  if (known.dropped) return `${plain(known.dropped)} events were dropped: a GPU is too far behind`;
  return known.missed ? `${plain(known.missed)} batches of events were missed` : "drag to move, wheel to zoom";
}

function showCards({ workers, clients }) {
  const sum = (list, of) => list.reduce((total, entry) => total + of(entry), 0);
  const rate = sum(clients, (client) => client.instructions_per_s);
  byId("sum-busy").textContent = workers.length ? percent(sum(workers, (worker) => worker.busy) / workers.length) : "–";
  byId("sum-rate").textContent = plain(rate);
  byId("sum-hot").textContent = rate ? percent(sum(clients, (client) => client.hot * client.instructions_per_s) / rate) : "–";
  byId("sum-memory").textContent = bytes(sum(workers, (worker) => worker.memory.used || 0));
  byId("sum-links").textContent = `${bytes(sum(workers, (worker) => worker.link_bytes_per_s))}/s`;
}

function showWorkers({ workers }) {
  if (!workers.length) {
    show("workers", make("p", { className: "empty" }, "No worker is connected. Start one: python -m gt.worker"));
    return;
  }
  const box = byId("workers"), shares = new Map();
  while (box.children.length > workers.length || (box.firstChild && !box.firstChild.classList.contains("worker"))) box.lastChild.remove();
  workers.forEach((worker, i) => {
    const families = bySize(Object.entries(worker.families));
    for (const [family, share] of families) shares.set(family, (shares.get(family) || 0) + share / workers.length);
    const { used = 0, peak = 0, total = 0 } = worker.memory;
    const row = box.children[i] || box.appendChild(workerRow());
    row.dataset.worker = worker.worker;
    const [name, numbers] = row.querySelectorAll(".head span");
    name.textContent = `worker ${worker.worker} · ${worker.device}`;
    numbers.textContent = `${percent(worker.busy)} busy · queue ${duration(worker.queue_us)} · `
      + `${bytes(used)} of ${bytes(total)}${peak ? `, peak ${bytes(peak)}` : ""} · ${bytes(worker.link_bytes_per_s)}/s`;
    const [activity, memory] = row.querySelectorAll(".bar");
    setParts(activity, families.map(([family, share]) => [share, familyColour(family), `${family} ${percent(share)}`]));
    setParts(memory, [[total ? used / total : 0, workerColour(worker.worker), `memory ${bytes(used)}`]]);
  });
  legend("legend", bySize([...shares]).map(([family, share]) => [family, familyColour(family), percent(share)]));
}

// The largest first; waiting, which is no work, last.
const bySize = (shares) => shares.sort((a, b) => (a[0] === "waiting") - (b[0] === "waiting") || b[1] - a[1]);

function workerRow() {
  const head = make("div", { className: "head" }, make("span", { className: "name" }), make("span", { className: "numbers" }));
  return make("div", { className: "worker" }, head, make("div", { className: "bar" }), make("div", { className: "bar" }));
}

// The parts of a bar: [share, colour, title]. Elements are kept, so that their width can change smoothly.
function setParts(bar, parts) {
  while (bar.children.length > parts.length) bar.lastChild.remove();
  parts.forEach(([share, colour, title], i) => {
    const part = bar.children[i] || bar.appendChild(make("i"));
    Object.assign(part.style, { width: `${Math.min(share, 1) * 100}%`, background: colour });
    part.title = title;
  });
}

function table(id, columns, rows, empty) {
  if (!rows.length) { show(id, make("tbody", {}, make("tr", {}, make("td", { className: "quiet" }, empty)))); return; }
  const cell = (tag, kind, content) => make(tag, { className: kind }, ...[content].flat());
  const head = make("thead", {}, make("tr", {}, ...columns.map(([title, kind]) => cell("th", kind, title))));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((content, i) => cell("td", columns[i][1], content)))));
  show(id, head, body);
}

function showClients({ clients }) {
  const columns = [["client", ""], ["time", "number"], ["instructions/s", "number"], ["memory", "number"], ["in hot paths", "number"]];
  const rows = [...clients].sort((a, b) => b.share - a.share).map((client) => [
    `client ${client.client}`, percent(client.share), plain(client.instructions_per_s), bytes(client.memory), percent(client.hot)]);
  table("clients", columns, rows, "No client is connected.");
}

function drawMemory() {
  const { context, width, height } = prepare(byId("memory"), 180), colours = themeColours();
  const loads = known.loads, first = loads[0].time, last = loads[loads.length - 1].time, span = Math.max(last - first, 30);
  const largest = Math.max(1, ...loads.flatMap((load) => load.workers.map((worker) => worker.memory.used || 0))) * 1.15;
  const x = (time) => width - ((last - time) / span) * width, y = (size) => height - 18 - (size / largest) * (height - 26);
  context.font = "11px system-ui, sans-serif";
  for (const share of [0, 0.5, 1]) {
    const size = (largest / 1.15) * share;
    context.fillStyle = colours.line;
    context.fillRect(0, y(size), width, 1);
    context.fillStyle = colours.quiet;
    context.fillText(bytes(size), 2, y(size) - 4);
  }
  context.fillText(`−${duration(span * 1e6)}`, 2, height - 4);
  context.textAlign = "right";
  context.fillText("now", width, height - 4);
  context.textAlign = "left";
  for (const worker of workerNumbers()) {
    context.beginPath();
    for (const load of loads) {
      const entry = load.workers.find((other) => other.worker === worker);
      if (entry && entry.memory.used !== undefined) context.lineTo(x(load.time), y(entry.memory.used));
    }
    context.strokeStyle = workerColour(worker);
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.stroke();
  }
  const sizes = new Map(known.load.workers.map((worker) => [worker.worker, worker.memory.used || 0]));
  legend("memory-legend", workerNumbers().map((worker) => [`worker ${worker}`, workerColour(worker), bytes(sizes.get(worker))]));
}

// -- what is asked for every two seconds

function showInspection({ hot, tensors, log }) {
  showHot(hot);
  const none = make("p", { className: "empty" }, "No tensor, or none that this dashboard may see.");
  const alike = grouped(tensors, (tensor) => JSON.stringify([tensor.client, tensor.type, tensor.layout, tensor.history]));
  show("tensors", ...(tensors.length ? alike.map(tensorRow) : [none]));
  const lines = [...log].reverse().map(([time, text]) =>
    make("li", {}, make("time", {}, new Date(time / 1e6).toLocaleTimeString("en-GB")), make("span", {}, text)));
  show("log", ...(lines.length ? lines : [make("li", { className: "quiet" }, "Nothing yet.")]));
}

function grouped(entries, keyOf) {
  const groups = new Map();
  for (const entry of entries) groups.set(keyOf(entry), [...(groups.get(keyOf(entry)) || []), entry]);
  return [...groups.values()];
}

const FIRST_DISPATCHER_NUMBER = 2 ** 31;   // the dispatcher numbers its own fragments from here on

function showHot(hot) {
  const columns = [["fragment", "text"], ["level", ""], ["length", "number"], ["runs", "number"], ["saved", "number"], ["where", ""]];
  const rows = grouped(hot, (section) => JSON.stringify([section.client, section.title, section.level])).map((sections) => {
    const section = sections[0], workers = sections.map((other) => other.worker).sort((a, b) => a - b);
    const [, number, part, what] = section.title.match(/^fragment (\d+)\.(\d+): (.*)$/s) || [null, 0, 0, section.title];
    const reasons = [...new Set(sections.flatMap((other) => other.reasons))];
    const name = make("b", {}, `${number % FIRST_DISPATCHER_NUMBER}.${part} `);
    return [
      [name, what, ...reasons.map((reason) => make("div", { className: "reason" }, reason))], make("span", { className: `level ${section.level}` }, section.level), plain(section.length),
      plain(section.runs), section.saved_seconds ? duration(section.saved_seconds * 1e6) : "–",
      `client ${section.client}, worker ${workers.join(", ")}`];
  });
  table("hot", columns, rows, "No step has been repeated yet.");
}

const openStories = new Set();   // what a person has opened stays open when the list is made again

function tensorRow(tensors) {
  const tensor = tensors[0], count = tensors.length > 1 ? `${tensors.length} × ` : "";
  const story = make("details", {}, make("summary", {}, make("code", {}, tensor.type), ` ${tensor.layout}`),
    ...tensor.history.map((line) => make("p", {}, line)));
  const key = JSON.stringify([tensor.client, tensor.type, tensor.layout, tensor.history]);
  story.open = openStories.has(key);
  story.ontoggle = () => (story.open ? openStories.add(key) : openStories.delete(key));
  return make("div", { className: "tensor" }, blockPicture(tensor), story,
    make("span", { className: "numbers" }, `${count}${bytes(tensor.nbytes)} · client ${tensor.client}`));
}

// The first two dims as a grid, each block in the colour of the worker that has it; copies are drawn side by side.
function blockPicture({ shape, blocks }) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 64 44");
  const rows = shape[0] || 1, columns = shape.length > 1 ? shape[1] || 1 : 1;
  const places = new Map();
  for (const block of blocks) {
    const key = JSON.stringify([block[1], block[2]]);
    places.set(key, [...(places.get(key) || []), block]);
  }
  for (const same of places.values()) {
    same.forEach(([worker, starts, sizes], i) => {
      const height = (sizes.length ? sizes[0] : 1) / rows, width = (sizes.length > 1 ? sizes[1] : 1) / columns / same.length;
      const left = (starts.length > 1 ? starts[1] : 0) / columns + i * width, top = (starts.length ? starts[0] : 0) / rows;
      const rect = document.createElementNS(space, "rect"), title = document.createElementNS(space, "title");
      title.textContent = `worker ${worker}`;
      const numbers = { x: left * 64 + 0.5, y: top * 44 + 0.5, width: Math.max(width * 64 - 1, 0.5), height: Math.max(height * 44 - 1, 0.5), rx: 2 };
      for (const [name, value] of Object.entries(numbers)) rect.setAttribute(name, value);
      rect.setAttribute("fill", workerColour(worker));
      rect.append(title);
      svg.append(rect);
    });
  }
  return svg;
}
