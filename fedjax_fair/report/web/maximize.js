// The chart of a maximization, and the selected items.

picture("bits", (host) => {
  const used = numbers.bits.filter(Boolean);
  const sent = hull(used, [0]);
  const powers = [];
  for (let power = Math.floor(Math.log10(sent[0])); power <= Math.ceil(Math.log10(sent[1])); power++) powers.push(10 ** power);
  const units = [[1e9, "Gbit"], [1e6, "Mbit"], [1e3, "kbit"], [1, "bit"]];
  const format = (bits) => { const [size, name] = units.find(([size]) => bits >= size) ?? [1, "bit"]; return `${Number((bits / size).toPrecision(3))} ${name}`; };
  const lows = [...known(numbers.level), ...hull(used, [1])];
  const y = { range: [Math.floor(Math.min(...lows) / 5) * 5, Math.max(102, ...lows)], label: "value of the set / that of centralized greedy (%)" };
  const plot = axes(host, { range: [powers[0], powers.at(-1)], ticks: powers, map: Math.log10, format, label: "sent to and from all clients so far" }, y, 340);
  for (const i of shown().filter((i) => !numbers.bits[i])) {
    line(plot, [powers[0], powers.at(-1)], [numbers.level[i], numbers.level[i]], color(i), { "stroke-width": 1.2, "stroke-dasharray": dashes(i), "data-method": i });
    mark(plot, numbers.methods[i], powers[0], numbers.level[i]);
  }
  curves(plot, numbers.bits);
  finish(plot, "value-against-bits");
});

const choice = { method: 0, seed: 0 };
const pixels = numbers.pictures ? Uint8Array.from(atob(numbers.pictures), (mark) => mark.charCodeAt(0)) : null;

function drawn(parent, item) {
  const [height, width] = numbers.side;
  const canvas = element(parent, "canvas", { width, height });
  const image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    image.data.fill(255 - pixels[item * height * width + i], 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

picture("items", (host) => {
  const chosen = numbers.chosen[choice.method][choice.seed];
  const order = [...chosen].sort((a, b) => numbers.items[a].localeCompare(numbers.items[b], "en", { numeric: true }));
  for (const item of order) {
    const times = numbers.chosen.flat().filter((run) => run.includes(item)).length;
    const entry = element(host, "li", { title: `in ${times} of ${numbers.chosen.flat().length} sets` });
    if (pixels) drawn(entry, item);
    entry.append(numbers.items[item]);
  }
  document.getElementById("items-note").textContent = `${order.length} items selected by ${numbers.methods[choice.method]} with seed ${numbers.seeds[choice.seed]}, sorted by name.`;
});

for (const [id, names, key] of [["choose-method", numbers.methods, "method"], ["choose-seed", numbers.seeds, "seed"]]) {
  const select = document.getElementById(id);
  names.forEach((name, i) => element(select, "option", { value: i }, String(name)));
  select.addEventListener("change", () => { choice[key] = Number(select.value); drawAll(); });
}
start();
