"use strict";
// Sorting, searching and choosing in the tables. The page is complete without this script.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const choice = (name) => document.getElementById(name)?.value ?? "";

// Numbers by value, other cells by text; missing values come last in both directions.
function compare(one, other, sign) {
  if (one === "" || other === "") return (one === "") - (other === "");
  const [a, b] = [Number(one), Number(other)];
  return sign * (Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b);
}

function sort(head) {
  const table = head.closest("table"), place = head.cellIndex, body = table.tBodies[0];
  const first = head.classList.contains("number") ? "descending" : "ascending";
  const turned = { ascending: "descending", descending: "ascending" };
  const order = turned[head.getAttribute("aria-sort")] ?? first;
  for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const value = (row) => row.cells[place].dataset.value;
  const sign = order === "ascending" ? 1 : -1;
  body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), sign)));
}

function filter() {
  const words = choice("search").toLowerCase().split(/\s+/), kind = choice("kind");
  for (const row of all(".results tbody tr")) {
    const text = `${row.cells[0].textContent} ${row.dataset.kind}`.toLowerCase();
    row.hidden = (kind && row.dataset.kind !== kind) || !words.every((word) => text.includes(word));
  }
  for (const table of all(".results")) {
    const rows = all("tbody tr", table), shown = rows.filter((row) => !row.hidden).length;
    const count = table.closest("section").querySelector(".count");
    count.textContent = shown < rows.length ? `${shown} of ${rows.length} methods.` : `${rows.length} methods.`;
  }
}

function show() {
  const group = choice("group");
  for (const cell of all(".results [data-group]")) cell.hidden = group !== "" && cell.dataset.group !== group;
  for (const [select, within] of [["federation", "#results"], ["scope", "#ranking"]])
    for (const one of all(`${within} .federation`)) one.hidden = one.dataset.federation !== choice(select);
}

function openCard() {
  const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (card?.tagName === "DETAILS") { card.open = true; card.scrollIntoView(); }
}

for (const head of all(".results thead th")) head.querySelector("button").addEventListener("click", () => sort(head));
for (const name of ["search", "kind"]) document.getElementById(name)?.addEventListener("input", filter);
for (const name of ["federation", "scope", "group"]) document.getElementById(name)?.addEventListener("input", show);
addEventListener("hashchange", openCard);
document.documentElement.classList.add("scripted");
show();
openCard();
