// Opens pages in frames of several widths, operates them, and writes the observations as JSON.
// `pages` is {name: HTML}, `widths` a list of pixels.
const prelude = `<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => problems.push("refused " + event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
</scr` + `ipt>`;

function choose(frame, id, value) {
  const one = frame.document.getElementById(id);
  one.value = value;
  one.dispatchEvent(new frame.Event("input", { bubbles: true }));
}

function operate(frame) {
  const all = (selector) => [...frame.document.querySelectorAll(selector)];
  const shown = (selector) => all(selector).filter((one) => one.offsetParent !== null);
  const names = () => shown("#results tbody th a").map((one) => one.textContent);
  const head = (label) => shown("#results thead th").find((one) => one.querySelector("button").textContent === label);
  const sorted = (label) => {
    head(label).querySelector("button").click();
    return { order: head(label).ariaSort, names: names() };
  };
  const seen = {
    start: names(), sections: shown("#results section").length, scopes: shown("#ranking section").length,
    heads: shown("#results thead th").length,
    down: sorted("accuracy"), up: sorted("accuracy"), byName: sorted("method"),
  };
  choose(frame, "group", "3");
  seen.costs = shown("#results thead th").map((one) => one.querySelector("button").textContent);
  seen.missingLast = [sorted("rounds to target").names, sorted("rounds to target").names];
  choose(frame, "kind", "selection");
  seen.selection = names();
  seen.count = shown("#results .count")[0].textContent;
  choose(frame, "kind", "");
  choose(frame, "search", "FED adam");
  seen.searched = names();
  choose(frame, "search", "");
  choose(frame, "federation", "groups");
  seen.federation = shown("#results section h3").map((one) => one.textContent);
  choose(frame, "scope", "digits");
  seen.scope = shown("#ranking section h3").map((one) => one.textContent);
  for (const one of all("details")) one.open = true;
  choose(frame, "group", "");
  return seen;
}

function beyond(frame) {
  const edge = frame.document.documentElement.clientWidth + 1;
  return [...frame.document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > edge && !one.closest(".scroll, svg"))
    .map((one) => `${one.tagName}.${one.className.baseVal ?? one.className}`);
}

const open = (page, width) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.onload = () => setTimeout(() => resolve(frame.contentWindow), 1500);
  frame.srcdoc = page.replace("<head>", "<head>" + prelude);
  document.body.append(frame);
});

(async () => {
  const seen = {};
  for (const [name, page] of Object.entries(pages)) for (const width of widths) {
    const frame = await open(page, width);
    const root = frame.document.documentElement, style = frame.getComputedStyle(frame.document.body);
    const one = { width: root.scrollWidth, beyond: beyond(frame), colors: [style.color, style.backgroundColor] };
    one.did = operate(frame);
    one.widthAfterwards = root.scrollWidth;
    one.beyondAfterwards = beyond(frame);
    one.problems = frame.problems;
    seen[`${name} ${width}`] = one;
  }
  document.body.textContent = JSON.stringify(seen);
})().catch((error) => { document.body.textContent = JSON.stringify({ error: String(error.stack) }); });
