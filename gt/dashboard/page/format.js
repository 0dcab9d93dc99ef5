"use strict";
// Numbers as text, colours, and elements.

// The colours of gt.scripts.visualize, which people with any kind of colour vision can tell apart.
const FAMILY_COLOURS = {
  matmul: "#0072B2", elementwise: "#E69F00", reduction: "#009E73", optimizer: "#CC79A7", attention: "#D55E00",
  normalization: "#F0E442", data: "#56B4E9", convolution: "#882255", recurrent: "#999933", random: "#DDCC77",
  fft: "#44AA99", moves: "#7B5E3B", compiled: "#332288", waiting: "#A8A8A8",
};
const LIGHT = new Set(["elementwise", "normalization", "data", "random", "waiting", "optimizer"]);  // with dark text
const WORKER_COLOURS = ["#3577d4", "#e8a013", "#0e9f7a", "#cf6fa5", "#8059c9", "#d9571e", "#4fb4e6", "#7a8a2a"];
const darkScheme = matchMedia("(prefers-color-scheme: dark)");

function familyColour(name) {
  const colour = FAMILY_COLOURS[name] || "#777777";
  return darkScheme.matches ? lighter(colour) : colour;
}

// A quarter of the way to white: dark colours must be seen on a dark ground.
function lighter(colour) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) / 4)).join(" ")})`;
}

const workerColour = (number) => WORKER_COLOURS[number % WORKER_COLOURS.length];

const percent = (share) => (share > 0 && share < 0.005 ? "<1 %" : `${Math.round(share * 100)} %`);
const plain = (count) => Math.round(count).toLocaleString("en");

function bytes(count) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (count < 1000) return `${count.toFixed(unit === "B" || count >= 100 ? 0 : 1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

function duration(microseconds) {
  if (microseconds < 1000) return `${Math.round(microseconds)} µs`;
  if (microseconds < 1e6) return `${+(microseconds / 1000).toPrecision(3)} ms`;
  return `${+(microseconds / 1e6).toPrecision(3)} s`;
}

const byId = (id) => document.getElementById(id);

// An element. Text is always put in as text: names come from users' programs.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") Object.assign(element.style, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

const show = (id, ...children) => byId(id).replaceChildren(...children);

function legend(id, entries) {
  show(id, ...entries.map(([name, colour, note]) =>
    make("span", {}, make("i", { style: { background: colour } }), note ? `${name} ${note}` : name)));
}

// A canvas with as many pixels as the screen; returns its context and its size in CSS pixels.
function prepare(canvas, height) {
  const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { text: read("--text"), quiet: read("--quiet"), line: read("--line"), track: read("--track"), card: read("--card") };
}
