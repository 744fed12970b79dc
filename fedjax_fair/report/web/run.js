// The charts of a run or a sweep.

const { quantity } = numbers;
const isPercent = quantity.unit === "%";
const percent = (value) => `${value.toFixed(1)}%`;
// The unit of a label has no name of its own; the axes carry it.
const ending = quantity.unit.startsWith("unit of ") ? "" : ` ${quantity.unit}`;
const amount = (value) => isPercent ? percent(value) : `${value.toFixed(quantity.digits)}${ending}`.trim();
const inUnit = (label, unit = quantity.unit) => unit ? `${label} (${unit})` : label;
const lastRound = Math.max(...numbers.level.flatMap(([rounds]) => rounds));
const rounds = roundAxis(numbers.start, lastRound);

// Curves by round, or by a time of `numbers.times`, and their axis.
function curvesBy(name) {
  const found = numbers.times?.[name];
  if (!found) return { ...numbers, axis: rounds };
  const end = Math.max(...found.level.flatMap(([times]) => times));
  return { ...found, start: 0, axis: { range: [0, end], label: found.label } };
}

const axisChoice = document.getElementById("choose-axis");
axisChoice?.addEventListener("change", drawAll);
const chosenCurves = () => curvesBy(axisChoice?.value);

picture("learning", (host) => {
  const { level, start, axis: x } = chosenCurves();
  const [low, high] = hull(level, [1], start);
  const axis = quantity.name === "accuracy" && isPercent ? levels(low, high) : padded(low, high);
  const plot = axes(host, x, { ...axis, label: inUnit(`${quantity.name}, mean over clients`) }, 300);
  curves(plot, level, start);
  finish(plot, quantity.name);
});

picture("spread", (host) => {
  const { dissimilarity, start, axis: x } = chosenCurves();
  const [, most] = hull(dissimilarity, [1], start);
  const high = Math.max(most, ...known(numbers.floor));
  const plot = axes(host, x, { range: [0, high * 1.15], label: inUnit("dissimilarity", quantity.difference) }, 300);
  for (const i of shown()) {
    const floor = numbers.floor[i] ?? null;
    line(plot, x.range, [floor, floor], color(i), { "stroke-width": 1.2, "stroke-dasharray": "1 4", "data-floor": i });
  }
  curves(plot, dissimilarity, start);
  finish(plot, "dissimilarity");
});

picture("busy", (host) => {
  const all = numbers.participation.map((found) => found && found.share);
  const [, high] = hull(all, [1, 3]);
  const x = { range: [0, 100], label: "clients, most frequent first (%)" };
  const plot = axes(host, x, { range: [0, Math.min(high * 1.05, 100)], label: "share of rounds trained in (%)" }, 300);
  curves(plot, all);
  finish(plot, "participation");
  if (shown().length > 7) return;
  const list = element(host, "p", { class: "how" });
  list.textContent = shown().filter((i) => numbers.participation[i]).map((i) => {
    const { gini: [mean, low, high], never } = numbers.participation[i];
    const half = high - low >= 0.01 ? ` ± ${((high - low) / 2).toFixed(2)}` : "";
    return `${numbers.methods[i]}: Gini index of times trained ${mean.toFixed(2)}${half}, never trained ${percent(never)}`;
  }).join("; ");
});

// Axes in percent have the same scale and span at least ten points, so that noise looks small.
picture("tradeoff", (host) => {
  const points = numbers.tradeoff;
  const both = [0, 1].map((side) => known(points.flatMap((pair) => pair[side] ?? [])));
  const middle = both.map((values) => (Math.min(...values) + Math.max(...values)) / 2);
  const span = Math.max(10, ...both.map((values) => 1.1 * (Math.max(...values) - Math.min(...values))));
  const [x, y] = middle.map((at, side) => {
    if (!isPercent) return padded(Math.min(...both[side]), Math.max(...both[side])).range;
    const low = side ? Math.min(at - span / 2, 100 - span) : Math.max(at - span / 2, 0);
    return [low, low + span];
  });
  const plot = axes(host, { range: x, label: inUnit("dissimilarity", quantity.difference) }, { range: y, label: inUnit(quantity.name) }, 0, true);
  const floors = known(numbers.floor);
  const floor = floors.reduce((sum, value) => sum + value, 0) / floors.length;
  if (floor > x[0]) {
    const edge = plot.px(Math.min(floor, x[1]));
    element(plot.svg, "rect", { x: plot.left, y: plot.top, width: edge - plot.left, height: plot.bottom - plot.top, fill: "var(--panel)", "data-noise": "" });
    element(plot.svg, "text", { x: plot.left + 6, y: plot.top + 14 }, "below the noise floor");
  }
  for (const i of shown()) {
    const [across, up] = points[i];
    if (!across || !up) continue;
    const ends = { stroke: color(i), "stroke-width": 1.5 };
    if (up[1] !== null) {
      element(plot.svg, "line", { x1: plot.px(across[1]), x2: plot.px(across[2]), y1: plot.py(up[0]), y2: plot.py(up[0]), ...ends });
      element(plot.svg, "line", { x1: plot.px(across[0]), x2: plot.px(across[0]), y1: plot.py(up[1]), y2: plot.py(up[2]), ...ends });
    }
    element(plot.svg, "circle", { cx: plot.px(across[0]), cy: plot.py(up[0]), r: 5, fill: color(i), "data-method": i });
    mark(plot, numbers.methods[i], across[0], ...up);
  }
  finish(plot, "tradeoff");
});

picture("settings", (host) => {
  const { names, columns, points } = numbers.settings;
  const level = points.map((point) => point[0]);
  const [low, high] = [Math.min(...level), Math.max(...level)];
  const y = { ...(isPercent ? { range: [low - 1, Math.min(high + 1, 100)] } : padded(low, high)), label: inUnit(quantity.name) };
  const hosts = panels(host, names);
  names.forEach((name, k) => {
    const values = columns[k];
    const x = { range: [-0.5, values.length - 0.5], ticks: values.map((_, i) => i), format: (i) => values[i], label: "" };
    const plot = axes(hosts[k], x, y, 220);
    values.forEach((_, i) => {
      const own = points.filter((point) => point[1][k] === i).map((point) => point[0]);
      for (const at of own) mark(plot, name, i, at);
      for (const at of own) element(plot.svg, "circle", { cx: plot.px(i), cy: plot.py(at), r: 4, fill: color(0), opacity: 0.55, "data-point": "" });
      const mean = own.reduce((sum, value) => sum + value, 0) / own.length;
      element(plot.svg, "line", { x1: plot.px(i) - 14, x2: plot.px(i) + 14, y1: plot.py(mean), y2: plot.py(mean), stroke: "var(--ink)", "stroke-width": 2 });
    });
    finish(plot, `effect-of-${name}`);
  });
});

const classStyles = ["", "7 4", "2 3", "9 3 2 3"];

function nameStyles(host, names) {
  const words = ["solid", "dashed", "dotted", "dash-dotted"];
  element(host, "p", { class: "how" }, names.map((name, c) => `${words[c % 4]}: ${name}`).join(", "));
}

// Curves of classes of clients, in a panel for each method.
function classPanels(host, all, names, { start, axis }, file) {
  const [low, high] = hull(all.flat(), [1], start);
  const tens = { range: [Math.floor(low / 10) * 10, Math.min(Math.ceil(high / 10) * 10, 100)] };
  const y = { ...(isPercent ? tens : padded(low, high)), label: inUnit(quantity.name) };
  nameStyles(host, names);
  const hosts = panels(host, shown().map((i) => numbers.methods[i]));
  shown().forEach((i, place) => {
    const plot = axes(hosts[place], axis, y, 210);
    all.forEach((group, g) => {
      const [xs, means, lows, highs] = group[i];
      const from = Math.max(xs.findIndex((at) => at >= start), 0);
      band(plot, xs.slice(from), lows.slice(from), highs.slice(from), color(i));
      line(plot, xs.slice(from), means.slice(from), color(i), { "stroke-dasharray": classStyles[g % 4] });
      dots(plot, xs.slice(from), means.slice(from), color(i));
      for (let k = from; k < xs.length; k++) mark(plot, names[g], xs[k], means[k], lows[k], highs[k]);
    });
    finish(plot, `${file}-${numbers.methods[i]}`);
  });
}

picture("groups", (host) => {
  const { groups, ...by } = chosenCurves();
  classPanels(host, groups, groups.map((_, g) => `group ${g}`), by, "groups");
});

picture("cluster_agreement", (host) => {
  const [, high] = hull(numbers.cluster_agreement, [0]);
  const plot = axes(host, roundAxis(1, high), { range: [0, 1], label: "mutual information, mean over rounds so far" }, 260);
  curves(plot, numbers.cluster_agreement);
  finish(plot, "cluster-agreement");
});
