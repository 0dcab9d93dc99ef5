// The connection to the dashboard's process: messages in, and what the page knows.

const MAX_AGE_US = 90e6;      // how much of the task stream is kept
const MAX_LOADS = 600;        // how many seconds of memory are kept
const MAX_HELD = 500;         // how many messages wait while the page is paused
const CONFIRMED_AT_ONCE = 10; // how many messages are confirmed by one

// The bars of a worker's lane, in the order of their starts. A bar is an array with these fields:
const WORKER = 0, LANE = 1, START = 2, END = 3, FAMILY = 4, BUSY = 5, COUNT = 6, LABEL = 7, SITE = 8, CLIENT = 9;

const known = {};

function forget() {
  Object.assign(known, {
    lanes: new Map(), families: [], labels: new Map(), sites: new Map(), loads: [], load: null,
    inspection: {}, lost: "", missed: 0, dropped: 0, now: 0, heard: 0, last: 0,
  });
}
forget();

// The server's time in microseconds since listening began, as far as it can be known now.
function serverTime() {
  return known.heard ? known.now + (performance.now() - known.heard) * 1000 : 0;
}

const receive = {
  hello(message) {
    forget();
    byId("server").textContent = message.server;
    known.lost = message.lost;
    addTexts(message);
    for (const past of message.past) receive[past.kind](past, true);
    known.last = message.last;
    if (message.inspection.hot) receive.inspection(message.inspection);
    panelsChanged();
  },
  tick(message, past) {
    known.families = message.families;
    known.missed = message.missed;
    known.dropped = message.dropped;
    if (!past) { known.now = message.now; known.heard = performance.now(); }
    addTexts(message);
    for (const bar of message.bars) addBar(bar);
  },
  load(message, past) {
    known.load = message;
    known.loads.push(message);
    if (known.loads.length > MAX_LOADS) known.loads.shift();
    known.lost = "";
    if (!past) panelsChanged();
  },
  inspection(message) {
    known.inspection = message;
    showInspection(message);
  },
  close({ begun, ended, bars }) {
    const lanes = new Map();
    for (const bar of bars.sort((a, b) => a[START] - b[START])) {
      if (!lanes.has(bar[WORKER])) lanes.set(bar[WORKER], [[], []]);
      lanes.get(bar[WORKER])[bar[LANE]].push(bar);
    }
    stream.closeView = { begun, ended, lanes };
  },
  lost(message) { known.lost = message.reason; panelsChanged(); },
};

function addTexts(message) {
  for (const [number, text] of message.labels) known.labels.set(number, text);
  for (const [client, number, text] of message.sites) known.sites.set(`${client}/${number}`, text);
}

function addBar(bar) {
  const worker = bar[WORKER];
  if (!known.lanes.has(worker)) known.lanes.set(worker, [[], []]);
  const bars = known.lanes.get(worker)[bar[LANE]];
  let at = bars.length;
  while (at > 0 && bars[at - 1][START] > bar[START]) at--;
  if (at === bars.length) bars.push(bar); else bars.splice(at, 0, bar);
  if (bars.length % 1000 === 0) {
    const first = bars.findIndex((old) => old[END] > bar[END] - MAX_AGE_US);
    if (first > 0) bars.splice(0, first);
  }
}

let socket = null;
let unconfirmed = 0;          // messages that were read and not confirmed yet

function connect() {
  unconfirmed = 0;
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (++unconfirmed >= CONFIRMED_AT_ONCE) {
      socket.send(`{"read":${unconfirmed}}`);
      unconfirmed = 0;
    }
    if (message.number && message.number <= known.last) return;  // it was in the past of hello
    if (!stream.paused || message.kind === "close") receive[message.kind](message);
    else if (stream.held.push(message) > MAX_HELD) stream.held.shift();
  };
  socket.onclose = () => {
    known.lost = known.lost || "the dashboard has ended, or this page must be opened by a new link";
    panelsChanged();
    setTimeout(connect, 2000);
  };
}

function askCloseView(begun, ended) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ close: [Math.floor(begun), Math.ceil(ended)] }));
}
