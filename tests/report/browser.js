// Opens pages in frames of several widths, operates them, and writes the observations as JSON.
// `pages` is {name: HTML}, `widths` a list of pixels; `uses` is {name: function}.

const prelude = `<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push("refused " + event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
</scr` + `ipt>`;

const many = (frame, selector) => frame.document.querySelectorAll(selector).length;
const one = (frame, selector) => frame.document.querySelector(selector);
const words = (frame, selector) => one(frame, selector).textContent;

function choose(frame, selector, value, kind) {
  one(frame, selector).value = value;
  one(frame, selector).dispatchEvent(new frame.Event(kind, { bubbles: true }));
}

function press(frame, selector, key) {
  const event = new frame.KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
  one(frame, selector).dispatchEvent(event);
}

// Elements beyond the right edge, except within elements that scroll.
function beyond(frame) {
  const edge = frame.document.documentElement.clientWidth + 1;
  return [...frame.document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > edge && !one.closest(".scroll, pre"))
    .map((one) => one.tagName + "." + one.className);
}

// The readout of the first chart by keys and pointer, and its download.
function readValues(frame, did) {
  const chart = one(frame, "#learning svg"), value = () => words(frame, "#learning output");
  did.beforeFocus = value();
  chart.dispatchEvent(new frame.FocusEvent("focus"));
  did.focusedValue = value();
  press(frame, "#learning svg", "ArrowRight");
  did.nextValue = value();
  const ring = one(frame, "#learning .ring"), box = chart.getBoundingClientRect();
  const place = ["cx", "cy"].map((name) => Number(ring.getAttribute(name)));
  press(frame, "#learning svg", "ArrowDown");
  did.otherMethod = value();
  chart.dispatchEvent(new frame.FocusEvent("blur"));
  chart.dispatchEvent(new frame.PointerEvent("pointermove", { clientX: box.left + place[0], clientY: box.top + place[1] }));
  did.pointedValue = value();
  chart.dispatchEvent(new frame.PointerEvent("pointerleave"));
  did.afterLeaving = value();
  frame.URL.createObjectURL = (blob) => { did.type = blob.type; return "#"; };
  frame.HTMLAnchorElement.prototype.click = function () { did.file = this.download; };
  one(frame, "#learning .download").click();
  did.svg = frame.standalone(chart);
}

// The axes that charts may have, and what is drawn then.
function chooseAxes(frame, did) {
  const values = [...frame.document.querySelectorAll("#choose-axis option")].map((option) => option.value);
  const label = (chart) => [...frame.document.querySelectorAll(`${chart} .axis`)].at(-1).textContent;
  [did.axes, did.groupAxes, did.linesByAxis] = [[], [], []];
  for (const value of [...values.slice(1), ...values.slice(0, 1)]) {
    if (did.axes.length) choose(frame, "#choose-axis", value, "change");
    did.axes.push(label("#learning"));
    did.groupAxes.push(label("#groups"));
    did.linesByAxis.push(many(frame, "#learning path[data-method]"));
  }
  did.classCharts = many(frame, "#class_speed svg");
  did.shares = many(frame, "#class_shares [data-share]");
  did.staleness = many(frame, "#staleness [data-staleness]");
  did.tasks = many(frame, "#tasks [data-task]");
}

const uses = {
  run(frame) {
    const did = { lines: many(frame, "#learning path[data-method]"), dots: many(frame, "#tradeoff circle[data-method]") };
    const numbers = JSON.parse(words(frame, "#numbers"));
    did.methods = numbers.methods.length;
    chooseAxes(frame, did);
    readValues(frame, did);
    one(frame, "#legend button").click();
    did.linesWithout = many(frame, "#learning path[data-method]");
    did.pressed = one(frame, "#legend button").getAttribute("aria-pressed");
    one(frame, "#legend button").click();
    did.linesAgain = many(frame, "#learning path[data-method]");
    did.first = words(frame, "#client h3");
    one(frame, "#map [data-client='1']").dispatchEvent(new frame.MouseEvent("mouseover", { bubbles: true }));
    did.pointed = words(frame, "#client h3");
    did.pointedRounds = Number(one(frame, "#client [data-rounds]").dataset.rounds);
    one(frame, "#map .grid").dispatchEvent(new frame.MouseEvent("mouseleave"));
    did.left = words(frame, "#client h3");
    one(frame, "#map [data-client='2']").click();
    press(frame, "#map .chosen", "ArrowRight");
    did.moved = words(frame, "#client h3");
    did.focused = frame.document.activeElement.dataset.client;
    did.stops = many(frame, "#map [tabindex='0']");
    choose(frame, "#choose-method", "1", "change");
    choose(frame, "#choose-seed", "1", "change");
    choose(frame, "#choose-round", "1", "input");
    did.round = words(frame, "#said-round");
    did.chosen = words(frame, "#client h3") + "; " + words(frame, "#client p");
    did.chosenRounds = Number(one(frame, "#client [data-rounds]").dataset.rounds);
    did.classes = [...frame.document.querySelectorAll("#client .bars .number")].map((cell) => cell.textContent);
    did.owners = many(frame, "#partition path[data-owner]");
    did.groups = many(frame, "#groups svg");
    did.settings = many(frame, "#settings svg");
    did.points = many(frame, "#settings [data-point]");
    one(frame, "details summary").click();
    did.open = one(frame, "details").open;
    return did;
  },
  task(frame) {
    const texts = [...frame.document.querySelectorAll(".chart text, .forest span")];
    const size = (one) => {
      const svg = one.closest("svg");
      const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
      return scale * parseFloat(frame.getComputedStyle(one).fontSize);
    };
    const marks = "[data-method], [data-owner], [data-dot]";
    const charts = [...frame.document.querySelectorAll(".chart svg")];
    for (const one of frame.document.querySelectorAll("details")) one.open = true;
    return {
      charts: charts.map((svg) => svg.closest("[data-title]")?.id ?? "client"),
      empty: charts.filter((svg) => !svg.querySelector(marks)).map((svg) => svg.parentElement.id),
      smallest: Math.min(...texts.map(size)),
      uncolored: [...frame.document.querySelectorAll("#map button")].filter((one) => !one.style.background).length,
      axes: [...frame.document.querySelectorAll(".axis")].map((one) => one.textContent),
      lines: frame.document.querySelector("main").innerText.split("\n"),
      classes: [...frame.document.querySelectorAll("#client .bars span:nth-child(3n + 1)")].map((one) => one.textContent),
    };
  },
  maximize(frame) {
    const did = { lines: many(frame, "#bits path[data-method]"), items: many(frame, "#items li") };
    did.pictures = many(frame, "#items canvas");
    choose(frame, "#choose-method", "1", "change");
    did.labels = [...frame.document.querySelectorAll("#items li")].map((item) => item.textContent);
    return did;
  },
};

function opened(page, width) {
  return new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    frame.addEventListener("load", () => done(frame.contentWindow), { once: true });
    frame.srcdoc = page.replace("<head>", `<head>${prelude}`);
    document.body.append(frame);
  });
}

async function look() {
  const found = {};
  for (const [name, page] of Object.entries(pages)) {
    for (const width of widths) {
      const frame = await opened(page, width);
      const style = frame.getComputedStyle(frame.document.body);
      found[`${name} ${width}`] = {
        width: frame.document.documentElement.scrollWidth,
        beyond: beyond(frame),
        colors: [style.color, style.backgroundColor],
        did: uses[["maximize", "task"].find((use) => name.startsWith(use)) ?? "run"](frame),
        beyondAfterwards: beyond(frame),
        problems: frame.problems,
      };
    }
  }
  document.body.replaceChildren();
  document.body.textContent = JSON.stringify(found);
}

look().catch((error) => { document.body.textContent = JSON.stringify({ failed: String(error.stack) }); });
