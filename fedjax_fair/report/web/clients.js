// Single clients, by method, seed and round.

const clients = numbers.clients;
const NOTHING = 65535;

function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (mark) => mark.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

const packed = unpacked(clients.measured);
const trained = unpacked(clients.trained);
const choice = { method: 0, seed: 0, round: clients.rounds.length - 1, client: 0, pointed: null };

const label = (client) => String(clients.names ? clients.names[client] : clients.ids[client]);

const one = (list) => list[list.length > 1 ? choice.seed : 0];

function value(method, seed, round, client) {
  const place = ((method * clients.seeds.length + seed) * clients.rounds.length + round) * clients.ids.length + client;
  return packed[place] === NOTHING ? null : clients.low + packed[place] / clients.perUnit;
}

const className = (row) => clients.classNames ? clients.classNames[row] : clients.hasClasses ? `class ${row}` : "examples";
const missing = (client) => one(clients.tested)[client] ? "no value" : "no test examples";

// The values at the latest evaluation up to a round.
function measured(method, seed, round) {
  for (let at = round; at >= 0; at--) {
    const all = clients.ids.map((_, client) => value(method, seed, at, client));
    if (known(all).length) return all;
  }
  return [];
}

picture("distribution", (host) => {
  const all = numbers.methods.map((_, i) =>
    known(clients.seeds.flatMap((_, seed) => measured(i, seed, choice.round))).sort((a, b) => a - b));
  const every = all.flat(), low = Math.min(...every);
  const range = isPercent ? { range: [Math.max(Math.floor((Math.min(low, 100) - 1) / 10) * 10, 0), 100] } : padded(...(every.length ? [low, Math.max(...every)] : [0, 1]));
  const x = { ...range, label: inUnit(`${quantity.name} of a client`) };
  const plot = axes(host, x, { range: [0, 100], label: `clients with at most this ${quantity.name} (%)` }, 300);
  // The largest errors are the worst.
  const isHigher = quantity.better === "higher", tenth = plot.py(isHigher ? 10 : 90);
  const above = isHigher ? tenth : plot.top, below = isHigher ? plot.bottom : tenth;
  element(plot.svg, "rect", { x: plot.left, y: above, width: plot.right - plot.left, height: below - above, fill: "var(--panel)" });
  element(plot.svg, "text", isHigher ? { x: plot.right - 4, y: below - 6, "text-anchor": "end" } : { x: plot.left + 4, y: above + 14 }, "worst 10%");
  for (const i of shown()) {
    const values = all[i];
    if (!values.length) continue;
    const points = [[plot.left, plot.bottom]];
    values.forEach((value, k) => {
      points.push([plot.px(value), points.at(-1)[1]]);
      points.push([plot.px(value), plot.py((100 * (k + 1)) / values.length)]);
    });
    element(plot.svg, "path", { d: path(points), fill: "none", stroke: color(i), "stroke-width": 2, "stroke-dasharray": dashes(i), "data-method": i });
    const count = Math.ceil(values.length / 10), worst = values[isHigher ? count - 1 : values.length - count];
    element(plot.svg, "circle", { cx: plot.px(worst), cy: tenth, r: 4.5, fill: color(i), stroke: "var(--paper)" });
    values.forEach((value, k) => mark(plot, numbers.methods[i], value, (100 * (k + 1)) / values.length));
  }
  finish(plot, `distribution-of-${quantity.name}`);
});

picture("map", (host) => {
  const all = measured(choice.method, choice.seed, choice.round);
  const values = known(all);
  const low = isPercent ? Math.min(...values, 99) : Math.min(...values), high = isPercent ? 100 : Math.max(...values);
  const [worst, best] = quantity.better === "higher" ? [low, high] : [high, low];
  const size = clients.ids.length > 120 ? " dense" : clients.names ? " named" : "";
  const grid = element(host, "div", { class: `grid${size}`, role: "grid", "aria-label": "clients" });
  clients.ids.forEach((_, client) => {
    const value = all[client] ?? null;
    // Rounded above 100%, the color would be invalid.
    const share = value === null ? 0 : best === worst ? 100 : Math.min((100 * (value - worst)) / (best - worst), 100);
    const button = element(grid, "button", { type: "button", tabindex: client === choice.client ? 0 : -1, "data-client": client,
      "aria-label": `client ${label(client)}: ${value === null ? missing(client) : amount(value)}` }, label(client));
    button.style.background = value === null ? "var(--panel)" : `color-mix(in oklab, var(--high) ${share}%, var(--low))`;
    button.style.color = share > 50 ? "var(--paper)" : "var(--ink)";
    if (client === choice.client) button.classList.add("chosen");
  });
  const scale = element(host, "div", { class: "scale" });
  if (values.length) {
    scale.append(amount(worst));
    element(scale, "i");
    scale.append(isPercent ? "100%" : amount(best));
  }
  const point = (event) => event.target.closest("[data-client]");
  grid.addEventListener("mouseover", (event) => { if (point(event)) describe(Number(point(event).dataset.client)); });
  grid.addEventListener("mouseleave", () => describe(choice.client));
  grid.addEventListener("click", (event) => { if (point(event)) select(Number(point(event).dataset.client), false); });
  grid.addEventListener("keydown", (event) => {
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const next = { Home: 0, End: clients.ids.length - 1 }[event.key] ?? choice.client + (step ?? NaN);
    if (!(next in clients.ids)) return;
    event.preventDefault();
    select(next, true);
  });
  describe(choice.client);
});

// A row per class and a column per client, sorted by most frequent class.
picture("partition", (host) => {
  const all = one(clients.classes);
  const most = (pairs) => pairs.reduce((best, pair) => (pair[1] > best[1] ? pair : best), [Infinity, 0]);
  const order = clients.ids.map((_, client) => client).filter((client) => all[client].length)
    .sort((a, b) => most(all[a])[0] - most(all[b])[0] || a - b);
  const every = Math.ceil(order.length / 200);
  const columns = order.filter((_, place) => place % every === 0);
  const classes = Math.max(...all.flat().map((pair) => pair[0])) + 1;
  const largest = Math.max(...columns.flatMap((client) => all[client].map((pair) => pair[1])));
  const x = { range: [-0.5, columns.length - 0.5], ticks: [], label: every > 1 ? `every ${every}th client` : "clients" };
  const y = { range: [classes - 0.5, -0.5], ticks: [...Array(classes).keys()].filter((at) => classes <= 30 || at % 10 === 0), format: (at) => clients.classNames ? clients.classNames[at] : String(at), label: clients.hasClasses ? "class" : "" };
  if (!clients.hasClasses) y.ticks = [];
  const plot = axes(host, x, y, Math.min(72 + 20 * classes, 420));
  const cell = [(plot.right - plot.left) / columns.length, (plot.bottom - plot.top) / classes];
  const [width, height] = [Math.min(cell[0], 2 * cell[1]), Math.min(cell[1], 2 * cell[0])];
  columns.forEach((client, place) => {
    let cells = "";
    for (const [row, count] of all[client]) {
      const side = 0.9 * Math.sqrt(count / largest), w = side * width, h = side * height;
      cells += `M${(plot.px(place) - w / 2).toFixed(1)} ${(plot.py(row) - h / 2).toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`;
    }
    const group = clients.groups ? one(clients.groups)[client] : 0;
    const drawn = element(plot.svg, "path", { d: cells, fill: color(group), "data-owner": client });
    for (const [row, count] of all[client]) {
      plot.points.push({ x: plot.px(place), y: plot.py(row), name: className(row), text: `client ${label(client)}, ${clients.hasClasses ? `${className(row)}: ${count} examples` : `${count} examples`}` });
    }
    drawn.addEventListener("mouseover", () => describe(client));
    drawn.addEventListener("click", () => select(client, false));
  });
  finish(plot, "partition");
  element(host, "p", { class: "how" }, `The largest box is ${largest} training examples.${clients.groups ? " Colors are ground-truth groups." : ""}`);
});

function select(client, focus) {
  const before = document.querySelector("#map .chosen");
  before.classList.remove("chosen");
  before.tabIndex = -1;
  const button = document.querySelector(`#map [data-client="${client}"]`);
  button.classList.add("chosen");
  button.tabIndex = 0;
  choice.client = client;
  if (focus) button.focus();
  describe(client);
}

function describe(client) {
  const host = document.getElementById("client");
  host.replaceChildren();
  const now = measured(choice.method, choice.seed, choice.round)[client] ?? null;
  const group = clients.groups ? `, group ${one(clients.groups)[client]}` : "";
  const head = element(host, "div", { class: "all" });
  element(head, "h3", {}, `Client ${label(client)}${group}: ${now === null ? missing(client) : amount(now)}`);
  const tested = one(clients.tested)[client];
  element(head, "p", { class: "how" }, `${numbers.methods[choice.method]}, seed ${clients.seeds[choice.seed]}, round ${clients.rounds[choice.round]}; measured on ${tested} test examples`);
  const [left, right] = [element(host, "div"), element(host, "div")];
  element(left, "h3", {}, clients.hasClasses ? "Training examples by class" : "Training examples");
  const owned = [...one(clients.classes)[client]].sort((a, b) => b[1] - a[1]).slice(0, 12);
  const bars = element(left, "div", { class: "bars" });
  const most = Math.max(1, ...owned.map((pair) => pair[1]));
  for (const [row, count] of owned) {
    element(bars, "span", {}, className(row));
    element(element(bars, "span"), "i").style.width = `${(100 * count) / most}%`;
    element(bars, "span", { class: "number" }, String(count));
  }
  const x = { range: [clients.rounds[0], Math.max(clients.rounds.at(-1), 1)], label: "round" };
  element(right, "h3", {}, `${quantity.name[0].toUpperCase()}${quantity.name.slice(1)}, and rounds of training`);
  const own = known(shown().flatMap((i) => clients.rounds.map((_, round) => value(i, choice.seed, round, client))));
  const range = isPercent ? { range: [0, 100] } : padded(...(own.length ? [Math.min(...own), Math.max(...own)] : [0, 1]));
  const plot = axes(element(right, "div", { class: "chart" }), x, { ...range, label: inUnit(quantity.name) }, 230);
  const order = [...shown().filter((i) => i !== choice.method), choice.method];
  for (const i of order) {
    const values = clients.rounds.map((_, round) => value(i, choice.seed, round, client));
    const evaluated = clients.rounds.map((_, k) => k).filter((k) => values[k] !== null);
    const own = i === choice.method;
    line(plot, evaluated.map((k) => clients.rounds[k]), evaluated.map((k) => values[k]), color(i), { "stroke-width": own ? 2.5 : 1, opacity: own ? 1 : 0.5, "data-method": i });
    dots(plot, evaluated.map((k) => clients.rounds[k]), evaluated.map((k) => values[k]), color(i));
    for (const k of evaluated) mark(plot, numbers.methods[i], clients.rounds[k], values[k]);
  }
  const [total, slots] = clients.cohorts;
  let ticks = "";
  for (let round = 0; round < total; round++) {
    const from = ((choice.method * clients.seeds.length + choice.seed) * total + round) * slots;
    if (trained.subarray(from, from + slots).includes(client)) ticks += `M${plot.px(round + 1).toFixed(1)} ${plot.bottom - 8}v8`;
  }
  element(plot.svg, "path", { d: ticks, stroke: color(choice.method), "stroke-width": 1.5, "data-rounds": (ticks.match(/M/g) ?? []).length });
  const now_x = plot.px(clients.rounds[choice.round]);
  element(plot.svg, "line", { x1: now_x, x2: now_x, y1: plot.top, y2: plot.bottom, stroke: "var(--muted)", "stroke-dasharray": "3 3" });
  finish(plot, `client-${clients.ids[client]}`);
}

function option(id, names, key) {
  const select = document.getElementById(id);
  names.forEach((name, i) => element(select, "option", { value: i }, String(name)));
  select.addEventListener("change", () => { choice[key] = Number(select.value); drawAll(); });
}

option("choose-method", numbers.methods, "method");
option("choose-seed", clients.seeds, "seed");
const slider = document.getElementById("choose-round");
const said = document.getElementById("said-round");
slider.max = clients.rounds.length - 1;
slider.value = choice.round;
const say = () => {
  said.textContent = clients.rounds[choice.round];
  slider.setAttribute("aria-valuetext", `round ${said.textContent}`);
};
slider.addEventListener("input", () => { choice.round = Number(slider.value); say(); drawAll(); });
say();
start();
