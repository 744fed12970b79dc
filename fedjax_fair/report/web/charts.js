"use strict";
// Pictures as SVG, as wide as there is room, in colors of the style sheet; drawn anew when the
// window or a choice changes.

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

// An axis is {range, label, ticks, map, format}; all but the first two may be left out.
function scale({ range, map = (value) => value }, start, end) {
  const [low, high] = range.map(map);
  return (value) => {
    const place = start + ((end - start) * (map(value) - low)) / (high - low || 1);
    return Math.min(Math.max(place, Math.min(start, end)), Math.max(start, end));
  };
}

function axes(host, x, y, height = 260, square = false) {
  const width = Math.max(host.clientWidth, 200);
  if (square) height = Math.min(width, 420);
  const left = 44, right = width - 14, top = 30, bottom = height - 42;
  const svg = element(host, "svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const px = scale(x, left, right), py = scale(y, bottom, top);
  const format = (axis, value) => (axis.format ? axis.format(value) : String(value));
  for (const at of y.ticks ?? nice(...y.range, 5)) {
    element(svg, "line", { x1: left, x2: right, y1: py(at), y2: py(at), stroke: "var(--line)" });
    element(svg, "text", { x: left - 6, y: py(at) + 4, "text-anchor": "end" }, format(y, at));
  }
  for (const at of x.ticks ?? nice(...x.range, Math.min(8, width / 70))) {
    element(svg, "line", { x1: px(at), x2: px(at), y1: bottom, y2: bottom + 4, stroke: "var(--muted)" });
    element(svg, "text", { x: px(at), y: bottom + 17, "text-anchor": "middle" }, format(x, at));
  }
  element(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--muted)" });
  element(svg, "text", { class: "axis", x: 2, y: 14 }, y.label);
  element(svg, "text", { class: "axis", x: right, y: height - 6, "text-anchor": "end" }, x.label);
  return { svg, px, py, left, right, top, bottom };
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function line(plot, xs, ys, stroke, attributes = {}) {
  const points = xs.map((x, i) => [plot.px(x), plot.py(ys[i])]).filter((_, i) => ys[i] !== null);
  return element(plot.svg, "path", { d: path(points), fill: "none", stroke, "stroke-width": 2, "stroke-linejoin": "round", ...attributes });
}

function band(plot, xs, lows, highs, fill) {
  if (!lows.length || lows.includes(null)) return;
  const up = xs.map((x, i) => [plot.px(x), plot.py(highs[i])]);
  const down = xs.map((x, i) => [plot.px(x), plot.py(lows[i])]).reverse();
  element(plot.svg, "path", { d: `${path([...up, ...down])}Z`, fill, opacity: Math.min(0.12, 0.6 / shown().length), stroke: "none" });
}

// Curves of all methods that are shown, with their intervals; from the round `start`.
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
    const [xs, means] = cut(all[i]);
    line(plot, xs, means, color(i), { "stroke-dasharray": dashes(i), "data-method": i });
    if (xs.length === 1) element(plot.svg, "circle", { cx: plot.px(xs[0]), cy: plot.py(means[0]), r: 3, fill: color(i) });
  }
}

function hull(all, columns, start = -Infinity) {
  const values = all.filter(Boolean).flatMap((curve) =>
    columns.flatMap((column) => known(curve[column].filter((_, k) => curve[0][k] >= start))));
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

// Accuracies near 100 % are spread out: the axis is the logarithm of what is missing.
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

function picture(name, draw) {
  const host = document.getElementById(name);
  if (host) pictures.push(() => { host.replaceChildren(); draw(host); });
}

function drawAll() { for (const draw of pictures) draw(); }

// Small pictures beside each other. All are there before one is drawn, which decides their widths.
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
    const button = element(host, "button", { type: "button", "aria-pressed": "true", title: "show or hide in all pictures" });
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
