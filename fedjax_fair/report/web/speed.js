// The charts of virtual time, in a panel for each method that has cohorts.

function methodPanels(host, all, draw) {
  const used = shown().filter((i) => all[i]);
  const hosts = panels(host, used.map((i) => numbers.methods[i]));
  used.forEach((i, place) => draw(hosts[place], all[i], i));
}

picture("class_speed", (host) => {
  classPanels(host, numbers.class_speed, numbers.classes, curvesBy("virtual_time"), "device-classes");
});

picture("class_shares", (host) => {
  const { classes } = numbers;
  const x = { range: [-0.5, classes.length - 0.5], ticks: classes.map((_, c) => c), format: (at) => classes[Math.round(at)], label: "" };
  methodPanels(host, numbers.class_shares, (panel, shares, i) => {
    const plot = axes(panel, x, { range: [0, 100], label: "share (%)" }, 220);
    shares.forEach(([clients, ...measured], c) => {
      element(plot.svg, "line", { x1: plot.px(c - 0.3), x2: plot.px(c + 0.3), y1: plot.py(clients), y2: plot.py(clients), stroke: "var(--ink)", "stroke-width": 2 });
      mark(plot, "clients", c, clients);
      measured.forEach(([mean, low, high], kind) => {
        if (mean === null) return;
        const at = plot.px(c + (kind ? 0.15 : -0.15));
        if (low !== null) element(plot.svg, "line", { x1: at, x2: at, y1: plot.py(low), y2: plot.py(high), stroke: color(i) });
        element(plot.svg, "circle", { cx: at, cy: plot.py(mean), r: 4, fill: kind ? "var(--paper)" : color(i), stroke: color(i), "stroke-width": 2, "data-share": "" });
        mark(plot, kind ? "weights" : "results", c, mean, low, high);
      });
    });
    finish(plot, `shares-${numbers.methods[i]}`);
  });
});

picture("staleness", (host) => {
  nameStyles(host, numbers.classes);
  methodPanels(host, numbers.staleness, (panel, classes, i) => {
    const [, last] = hull(classes, [0]), [, most] = hull(classes, [1]);
    const x = { range: [0, Math.max(last, 1)], label: "updates", whole: true };
    const plot = axes(panel, x, { range: [0, most * 1.05], label: "share of results (%)" }, 210);
    classes.forEach(([xs, ys], c) => {
      line(plot, xs, ys, color(i), { "stroke-dasharray": classStyles[c % 4], "data-staleness": c });
      dots(plot, xs, ys, color(i));
      xs.forEach((at, k) => mark(plot, numbers.classes[c], at, ys[k]));
    });
    finish(plot, `staleness-${numbers.methods[i]}`);
  });
});

picture("tasks", (host) => {
  nameStyles(host, numbers.classes);
  methodPanels(host, numbers.tasks, (panel, tasks, i) => {
    const x = { range: [0, Math.max(...tasks.map(([, end]) => end), 0)], label: "virtual time (s)" };
    const plot = axes(panel, x, { range: [tasks.length, 1], ticks: [1, tasks.length], label: "task" }, 300);
    tasks.forEach(([start, end, kind, counts], k) => {
      line(plot, [start, end], [k + 1, k + 1], color(i), { "stroke-dasharray": classStyles[kind % 4], opacity: counts ? 1 : 0.35, "data-task": "" });
      mark(plot, numbers.classes[kind], end, k + 1);
    });
    finish(plot, `tasks-${numbers.methods[i]}`);
  });
});
