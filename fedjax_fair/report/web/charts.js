"use strict";
// Charts as SVG of the available width, in colors of the style sheet; redrawn when the window or a
// choice changes. Values can be read with pointer or arrow keys, and charts can be downloaded.

const SVG = "http://www.w3.org/2000/svg";
const numbers = JSON.parse(document.getElementById("numbers").textContent);
const hidden = new Set();
const pictures = [];

const color = (i) => `var(--m${i % 7})`;
const dashes = (i) => ["", "7 4", "2 3"][Math.floor(i / 7) % 3];
const shown = () => numbers.methods.map((_, i) => i).filter((i) => !hidden.has(i));
const known = (values) => values.filter((value) => value !== null && value !== undefined && !Number.isNaN(value));

function element(parent, name, attributes = {}, text = "") {
  const made = name in { svg: 1, g: 1, path: 1, line: 1, text: 1, circle: 1, rect: 1, title: 1 }
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  parent.append(made);
  return made;
}

function nice(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    found.push(Number(at.toPrecision(12)));
  }
  return found;
}

// An axis of rounds, with whole ticks; a single round is in its middle.
function roundAxis(first, last) {
  return { range: first === last ? [first - 1, last + 1] : [first, last], label: "round", whole: true };
}

// An axis is {range, label, ticks, map, format, whole}; only the first two are required.
function scale({ range, map = (value) => value }, start, end) {
  const [low, high] = range.map(map);
  return (value) => {
    const place = start + ((end - start) * (map(value) - low)) / (high - low || 1);
    return Math.min(Math.max(place, Math.min(start, end)), Math.max(start, end));
  };
}

const ticks = ({ ticks, range, whole }, count) =>
  (ticks ?? nice(...range, count)).filter((at) => !whole || (Number.isInteger(at) && at >= 0));

function axes(host, x, y, height = 260, square = false) {
  const width = Math.max(host.clientWidth, 200);
  if (square) height = Math.min(width, 420);
  const format = (axis, value) => (axis.format ? axis.format(value) : String(value));
  // Names are longer than numbers; a character is at most seven pixels wide.
  const longest = Math.max(...ticks(y, 5).map((at) => format(y, at).length), 0);
  const left = Math.min(Math.max(44, 7 * longest + 10), 0.4 * width);
  const right = width - 14, top = 30, bottom = height - 42;
  const svg = element(host, "svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const px = scale(x, left, right), py = scale(y, bottom, top);
  for (const at of ticks(y, 5)) {
    element(svg, "line", { x1: left, x2: right, y1: py(at), y2: py(at), stroke: "var(--line)" });
    const room = Math.floor((left - 10) / 7), full = format(y, at);
    const label = element(svg, "text", { x: left - 6, y: py(at) + 4, "text-anchor": "end" },
      full.length > room ? `${full.slice(0, room - 1)}…` : full);
    if (full.length > room) element(label, "title", {}, full);
  }
  for (const at of ticks(x, Math.min(8, width / 70))) {
    element(svg, "line", { x1: px(at), x2: px(at), y1: bottom, y2: bottom + 4, stroke: "var(--muted)" });
    element(svg, "text", { x: px(at), y: bottom + 17, "text-anchor": "middle" }, format(x, at));
  }
  element(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--muted)" });
  element(svg, "text", { class: "axis", x: 2, y: 14 }, y.label);
  element(svg, "text", { class: "axis", x: right, y: height - 6, "text-anchor": "end" }, x.label);
  return { svg, px, py, left, right, top, bottom, host, width, x, points: [] };
}

// Adds a point whose value can be read.
function mark(plot, name, x, y, low = null, high = null) {
  if (y === null || y === undefined) return;
  const at = plot.x.format ? plot.x.format(x) : `${plot.x.label} ${round(x)}`.trim();
  const interval = low === null || low === undefined ? "" : ` (95% CI ${round(low)} to ${round(high)})`;
  plot.points.push({ x: plot.px(x), y: plot.py(y), name, text: `${name}, ${at}: ${round(y)}${interval}` });
}

function round(value) {
  if (Math.abs(value) < 0.1) return String(Number(value.toPrecision(3)));
  return String(Number(value.toFixed(Math.abs(value) < 2 ? 3 : 1)));
}

// The index of the point that is closest to a place, among those of `name` if given.
function nearest(points, x, y, name = null) {
  let best = -1, least = Infinity;
  points.forEach((point, i) => {
    const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (distance < least && (name === null || point.name === name)) [best, least] = [i, distance];
  });
  return best;
}

// The index of the point that a key leads to: along a curve, or to the next curve.
function moved(points, at, key) {
  const names = [...new Set(points.map((point) => point.name))];
  const { name, x, y } = points[at];
  const same = points.map((_, i) => i).filter((i) => points[i].name === name);
  const place = same.indexOf(at);
  const other = (step) => nearest(points, x, y, names[(names.indexOf(name) + step + names.length) % names.length]);
  const keys = {
    ArrowLeft: () => same[Math.max(place - 1, 0)], ArrowRight: () => same[Math.min(place + 1, same.length - 1)],
    ArrowUp: () => other(-1), ArrowDown: () => other(1), Home: () => same[0], End: () => same.at(-1),
  };
  return keys[key] ? keys[key]() : null;
}

// Makes the values of a complete chart readable and the chart downloadable.
function finish(plot, file) {
  const { svg, points, host, width } = plot;
  const title = host.closest("[data-title]")?.dataset.title ?? file;
  svg.setAttribute("role", "application");
  svg.setAttribute("aria-roledescription", "chart");
  svg.setAttribute("aria-label", `${title} Arrow keys read values.`);
  const bar = element(host, "div", { class: "readout" });
  const output = element(bar, "output");
  const button = element(bar, "button", { type: "button", class: "download" }, "download as SVG");
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([standalone(svg)], { type: "image/svg+xml" }));
    link.download = `${file}.svg`;
    link.click();
  });
  if (!points.length) return;
  svg.setAttribute("tabindex", 0);
  const ring = element(svg, "circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, class: "ring" });
  let at = null;
  const show = (i) => {
    at = i ?? at;
    ring.setAttribute("visibility", i === null ? "hidden" : "visible");
    output.textContent = i === null ? "" : points[i].text;
    if (i === null) return;
    ring.setAttribute("cx", points[i].x);
    ring.setAttribute("cy", points[i].y);
  };
  show(null);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    show(nearest(points, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale));
  });
  svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) show(null); });
  svg.addEventListener("focus", () => show(at ?? 0));
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", (event) => {
    const next = moved(points, at ?? 0, event.key);
    if (next === null) return;
    event.preventDefault();
    show(next);
  });
}

// A chart as a file of its own, which has no style sheet.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  copy.querySelector(".ring")?.remove();
  const style = document.createElementNS(SVG, "style");
  style.textContent = "text{fill:var(--muted);font:12px sans-serif}.axis{fill:var(--ink)}svg{background:var(--paper)}";
  copy.prepend(style);
  const colors = getComputedStyle(document.documentElement);
  return resolved(new XMLSerializer().serializeToString(copy), (name) => colors.getPropertyValue(name));
}

const resolved = (markup, color) => markup.replace(/var\((--[\w-]+)\)/g, (_, name) => color(name).trim());

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function line(plot, xs, ys, stroke, attributes = {}) {
  const points = xs.map((x, i) => [plot.px(x), plot.py(ys[i])]).filter((_, i) => ys[i] !== null);
  return element(plot.svg, "path", { d: path(points), fill: "none", stroke, "stroke-width": 2, "stroke-linejoin": "round", ...attributes });
}

// Marks the values of a curve that has few; a line through a single one is invisible.
function dots(plot, xs, ys, fill) {
  if (xs.length > 3) return;
  xs.forEach((x, k) => element(plot.svg, "circle", { cx: plot.px(x), cy: plot.py(ys[k]), r: 3, fill, "data-dot": "" }));
}

function band(plot, xs, lows, highs, fill) {
  if (!lows.length || lows.includes(null)) return;
  if (xs.length === 1) {  // A band of no width is invisible.
    element(plot.svg, "line", { x1: plot.px(xs[0]), x2: plot.px(xs[0]), y1: plot.py(lows[0]), y2: plot.py(highs[0]), stroke: fill });
    return;
  }
  const up = xs.map((x, i) => [plot.px(x), plot.py(highs[i])]);
  const down = xs.map((x, i) => [plot.px(x), plot.py(lows[i])]).reverse();
  element(plot.svg, "path", { d: `${path([...up, ...down])}Z`, fill, opacity: Math.min(0.12, 0.6 / shown().length), stroke: "none" });
}

// Curves of all methods that are shown, with intervals, from the round `start`.
function curves(plot, all, start = -Infinity) {
  const cut = (curve) => {
    const from = curve[0].findIndex((round) => round >= start);
    return from < 0 ? [[], [], [], []] : curve.map((column) => column.slice(from));
  };
  const used = shown().filter((i) => all[i]);
  for (const i of used) {
    const [xs, , lows, highs] = cut(all[i]);
    band(plot, xs, lows, highs, color(i));
  }
  for (const i of used) {
    const [xs, means, lows, highs] = cut(all[i]);
    xs.forEach((x, k) => mark(plot, numbers.methods[i], x, means[k], lows[k], highs[k]));
    line(plot, xs, means, color(i), { "stroke-dasharray": dashes(i), "data-method": i });
    dots(plot, xs, means, color(i));
  }
}

function hull(all, columns, start = -Infinity) {
  const values = all.filter(Boolean).flatMap((curve) =>
    columns.flatMap((column) => known(curve[column].filter((_, k) => curve[0][k] >= start))));
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

// An axis that is logarithmic in the distance from 100%.
function levels(low, high) {
  const least = Math.max(0.6 * (100 - high), 0.05);
  const top = 100 - least, bottom = Math.max(low - 0.15 * (100 - low), 0);
  const all = [0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.5, 99.8, 99.9];
  const map = (value) => -Math.log(Math.max(100 - value, least));
  const ticks = [];
  for (const at of all.filter((value) => value >= bottom && value <= top)) {
    if (!ticks.length || map(at) - map(ticks.at(-1)) > 0.09 * (map(top) - map(bottom))) ticks.push(at);
  }
  return { range: [bottom, top], ticks, map };
}

// An axis of values that are not in percent, with a margin.
function padded(low, high) {
  const margin = 0.08 * (high - low) || 0.1 * Math.abs(high) || 1;
  return { range: [low - margin, high + margin] };
}

function picture(name, draw) {
  const host = document.getElementById(name);
  if (host) pictures.push(() => { host.replaceChildren(); draw(host); });
}

function drawAll() { for (const draw of pictures) draw(); }

// Small charts beside each other; all exist before one is drawn, since that decides their widths.
function panels(host, names) {
  const row = element(host, "div", { class: "panels" });
  return names.map((name) => {
    const panel = element(row, "div");
    element(panel, "h3", {}, name);
    return element(panel, "div");
  });
}

function swatch(parent, i) {
  const svg = element(parent, "svg", { width: 22, height: 10, "aria-hidden": "true" });
  element(svg, "line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: color(i), "stroke-width": 3, "stroke-dasharray": dashes(i) });
}

function legend(host) {
  numbers.methods.forEach((name, i) => {
    const button = element(host, "button", { type: "button", "aria-pressed": "true", title: "show or hide in all charts" });
    swatch(button, i);
    button.append(name);
    button.addEventListener("click", () => {
      hidden.has(i) ? hidden.delete(i) : hidden.add(i);
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      drawAll();
    });
  });
}

function start() {
  const host = document.getElementById("legend");
  if (host) legend(host);
  drawAll();
  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (width === document.documentElement.clientWidth) return;
    width = document.documentElement.clientWidth;
    drawAll();
  });
}
