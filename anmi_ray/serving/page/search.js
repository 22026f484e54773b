
// Queries by hand, one ranking or two beside each other. Texts are written as text, never as markup.
"use strict";

const of = (id) => document.getElementById(id);
const LETTERS = 320; // of a document that is not opened
const LONGEST = 50000; // of one that is
const COMMON = new Set("a an and are as at be by can do does for from has have how if in is it its of on or that the to was what when where which who will with".split(" "));
const words = new Intl.Segmenter(undefined, { granularity: "word" });
let about = null; // what the service says of its systems
let key = null; // in memory alone
let asking = null; // the request under way
let shown = []; // the rankings on the screen
let asked = ""; // their query

function make(name, content, type) {
  const node = document.createElement(name);
  if (type) node.className = type;
  if (content !== undefined) node.textContent = content;
  return node;
}

async function ask(path, said, signal) {
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  if (said) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: said ? "POST" : "GET", headers, body: said && JSON.stringify(said), signal });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  const error = new Error(content.message ?? `the service answers ${answer.status}`);
  error.status = answer.status;
  throw error;
}

function fail(error) {
  if (error.name === "AbortError") return;
  of("unlock").hidden = error.status !== 401;
  const gone = error instanceof TypeError; // what fetch says where nobody answers
  const first = error.status === 401 && key === null;
  of("fault").textContent = gone ? "The service does not answer. Is anmi serve still there?" : error.message;
  of("fault").hidden = first;
  of("said").textContent = "";
  if (error.status === 401) of("key").focus();
}

async function begin() {
  try {
    about = await ask("v1/systems");
  } catch (error) {
    return fail(error);
  }
  of("fault").hidden = of("unlock").hidden = true;
  const names = about.systems.map((one) => one.name);
  for (const [id, extra] of [["first", []], ["second", ["nothing"]]]) {
    of(id).replaceChildren(...[...extra, ...names].map((name) => make("option", name)));
  }
  const last = names.includes("reranked+hybrid") ? "reranked+hybrid" : "reranked";
  of("first").value = "hybrid";
  of("second").value = last;
  for (const option of of("count").options) option.disabled = option.index > 0 && Number(option.value) > about.depth;
  if (of("count").selectedOptions[0].disabled) of("count").selectedIndex = 0;
  of("about").textContent = `${about.run}: ${about.documents.toLocaleString("en")} documents. A search ranks ${about.depth} of them; the model reads the hybrid's first ${about.candidates}.`;
  of("examples").replaceChildren(...about.examples.map(example));
  of("start").hidden = false;
  of("start").querySelector("h2").hidden = !about.examples.length;
  document.title = `Search ${about.run}`;
  of("query").focus();
  restore();
}

function example(text) {
  const item = make("li");
  const button = make("button", text);
  button.dir = "auto";
  button.onclick = () => { of("query").value = text; search(); };
  item.append(button);
  return item;
}

// What is asked stands in the address, so that reload, back and a colleague find it; a key never does.
function remember() {
  const said = new URLSearchParams({ q: of("query").value, a: of("first").value, b: of("second").value, n: of("count").value });
  if (location.hash !== `#${said}`) history.pushState(null, "", `#${said}`);
}

function restore() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const [name, id] of [["a", "first"], ["b", "second"], ["n", "count"]]) {
    if ([...of(id).options].some((option) => option.value === said.get(name) && !option.disabled)) of(id).value = said.get(name);
  }
  if (!said.get("q")) return;
  of("query").value = said.get("q");
  search();
}

async function search() {
  const query = of("query").value;
  if (about === null || !query.trim()) return;
  remember();
  asking?.abort();
  const mine = (asking = new AbortController());
  const systems = [of("first").value];
  if (of("second").value !== "nothing" && of("second").value !== systems[0]) systems.push(of("second").value);
  const begun = performance.now();
  of("said").textContent = "searching …";
  of("columns").setAttribute("aria-busy", "true");
  try {
    const found = await ask("v1/search", { query, systems, top_n: Math.min(about.depth, Number(of("count").value)) }, mine.signal);
    [shown, asked] = [found.rankings, query];
    of("fault").hidden = of("unlock").hidden = true;
    show();
    const seconds = ((performance.now() - begun) / 1000).toFixed(2);
    of("said").textContent = `${about.documents.toLocaleString("en")} documents, ${seconds} s`;
  } catch (error) {
    fail(error);
  } finally {
    if (asking === mine) of("columns").setAttribute("aria-busy", "false");
  }
}

function show() {
  const two = shown.length === 2;
  const stages = about.systems.map((one) => one.name).filter((name) => shown.some((one) => one.results.some((row) => name in row.why)));
  const parts = shown.map((one, side) => column(one, shown[1 - side], side, stages));
  if (two) parts.splice(1, 0, document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  of("columns").replaceChildren(...parts);
  of("columns").classList.toggle("two", two);
  of("columns").dataset.side = two ? "1" : "0";
  of("sides").hidden = !two;
  of("sides").replaceChildren(...(two ? shown.map((one, side) => tab(one.system, side)) : []));
  of("start").hidden = true;
  document.title = `${asked} · ${about.run}`;
  draw();
}

function tab(name, side) {
  const button = make("button", name);
  button.setAttribute("aria-pressed", String(side === 1));
  button.onclick = () => turn(side);
  return button;
}

function turn(side) {
  of("columns").dataset.side = side;
  [...of("sides").children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === side)));
}

function column(ranking, other, side, stages) {
  const section = make("section", undefined, "column");
  const title = make("h2", ranking.system);
  title.append(make("small", about.systems.find((one) => one.name === ranking.system)?.does));
  section.append(title);
  const list = make("ol");
  list.append(...ranking.results.map((row) => card(row, ranking.system, other?.system, side, stages)));
  section.append(ranking.results.length ? list : make("p", "Nothing found.", "quiet"));
  section.setAttribute("aria-label", ranking.system);
  return section;
}

function card(row, system, other, side, stages) {
  const item = make("li");
  const head = make("button", undefined, "head");
  const text = make("p", undefined, "text");
  const title = make("span", undefined, "title");
  item.dataset.id = row.id;
  head.setAttribute("aria-expanded", "false");
  title.dir = text.dir = "auto";
  title.append(...marked(row.document.title || row.id));
  text.append(...marked(snippet(row.document.text)));
  head.append(make("span", row.rank, "rank"), title);
  if (other) head.append(move(row, system, other, side));
  head.onclick = () => toggle(item, row, stages);
  head.onfocus = item.onmouseenter = () => point(row.id);
  item.onmouseleave = () => point(document.activeElement?.closest?.("li[data-id]")?.dataset.id);
  item.append(head, text);
  return item;
}

// Of the second ranking how far the document has come from its rank in the first, of the first where it goes.
function move(row, system, other, side) {
  const theirs = row.why[other]?.rank;
  const badge = make("span", undefined, "move");
  const gone = other.startsWith("reranked") ? "not reranked" : `not in ${other}`;
  if (theirs === undefined) {
    badge.textContent = side ? `▲ ${gone}` : `▼ ${gone}`;
    badge.classList.add(side ? "up" : "down");
    return badge;
  }
  const risen = side ? theirs - row.rank : row.rank - theirs; // ranks that it gains from the first to the second
  badge.classList.add(risen > 0 ? "up" : risen < 0 ? "down" : "level");
  const arrow = risen > 0 ? `▲ ${risen}` : risen < 0 ? `▼ ${-risen}` : "=";
  badge.textContent = risen ? `${arrow} ${side ? "from" : "to"} ${theirs}` : arrow;
  badge.title = `${system} ${row.rank}, ${other} ${theirs}`;
  return badge;
}

function toggle(item, row, stages) {
  const open = item.classList.toggle("open");
  const text = item.querySelector(".text");
  item.querySelector(".head").setAttribute("aria-expanded", String(open));
  item.querySelector(".why")?.remove();
  item.querySelector(".id")?.remove();
  const whole = row.document.text;
  text.replaceChildren(...marked(open ? whole.slice(0, LONGEST) + (whole.length > LONGEST ? " …" : "") : snippet(whole)));
  if (open) text.before(why(row, stages), make("p", row.id === row.document.title ? "" : row.id, "id"));
  draw();
}

function why(row, stages) {
  const table = make("table", undefined, "why");
  const head = table.createTHead().insertRow();
  for (const name of ["stage", "rank", "score"]) head.append(make("th", name));
  const body = table.createTBody();
  for (const name of stages) {
    const line = body.insertRow();
    const place = row.why[name];
    const first = make("th", name);
    first.scope = "row";
    first.title = about.systems.find((one) => one.name === name).does;
    line.append(first);
    line.classList.toggle("asked", shown.some((one) => one.system === name));
    line.append(make("td", place ? place.rank : "–"));
    const none = name.startsWith("reranked") ? "not among the reranked" : `not in its first ${about.depth}`;
    line.append(make("td", place ? place.score.toPrecision(4) : none));
  }
  return table;
}

// The beginning, or what surrounds the first word of the query.
function snippet(text) {
  const part = text.slice(0, 20000);
  const hit = [...words.segment(part)].find((word) => matches(word));
  const start = hit && hit.index > LETTERS - 80 ? hit.index - 80 : 0;
  const end = start + LETTERS;
  return (start ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
}

const stem = (word) => word.toLowerCase().replace(/(?<=...)(ings?|ed|es|e|s)$/u, "");
let stems = { of: null, all: new Set() };

function matches(word) {
  if (stems.of !== asked) {
    const found = [...words.segment(asked)].filter((one) => one.isWordLike && !COMMON.has(one.segment.toLowerCase()));
    stems = { of: asked, all: new Set(found.map((one) => stem(one.segment))) };
  }
  return word.isWordLike && stems.all.has(stem(word.segment));
}

// Text nodes, and an element around every word of the query.
function marked(text) {
  const nodes = [];
  let plain = "";
  for (const word of words.segment(text)) {
    if (!matches(word)) {
      plain += word.segment;
      continue;
    }
    nodes.push(plain, make("mark", word.segment));
    plain = "";
  }
  return [...nodes, plain];
}

// A line from each document on the left to itself on the right.
function draw() {
  const svg = of("columns").querySelector("svg");
  if (!svg) return;
  const lists = [...of("columns").querySelectorAll(".column")];
  const box = svg.getBoundingClientRect();
  const middle = (item) => { const place = item.firstChild.getBoundingClientRect(); return place.top + place.height / 2 - box.top; };
  const right = new Map([...lists[1].querySelectorAll("li")].map((item, at) => [item.dataset.id, [item, at]]));
  const lines = [];
  [...lists[0].querySelectorAll("li")].forEach((item, at) => {
    if (!right.has(item.dataset.id)) return;
    const [there, to] = right.get(item.dataset.id);
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [from, end, half] = [middle(item), middle(there), box.width / 2];
    line.setAttribute("d", `M2,${from} C${half},${from} ${half},${end} ${box.width - 2},${end}`);
    line.classList.add(to < at ? "up" : to > at ? "down" : "level");
    line.dataset.id = item.dataset.id;
    lines.push(line);
  });
  svg.replaceChildren(...lines);
  point(document.activeElement?.closest?.("li[data-id]")?.dataset.id);
}

function point(id) {
  for (const node of of("columns").querySelectorAll("[data-id]")) node.classList.toggle("same", shown.length === 2 && node.dataset.id === id);
}

function press(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const head = document.activeElement?.closest?.(".head");
  const typing = document.activeElement?.matches?.("input, select");
  if (event.key === "/" && !document.activeElement?.matches?.("input")) toQuery();
  else if (event.key === "Escape") leave(head);
  else if (event.key === "ArrowDown" && document.activeElement === of("query")) go(visible()[0]);
  else if (!typing && head && walk(head, event.key)) event.preventDefault();
  else return;
  event.preventDefault();
}

const visible = () => [...of("columns").querySelectorAll(".head")].filter((one) => one.offsetParent !== null);

function leave(head) {
  const item = head?.closest("li");
  if (item?.classList.contains("open")) head.click();
  else toQuery();
}

function toQuery() {
  of("query").focus();
  of("query").select();
}

// Up and down within a ranking; left and right to the same document, or to the same place where it is not.
function walk(head, pressed) {
  const lists = [...of("columns").querySelectorAll(".column")];
  const side = lists.findIndex((one) => one.contains(head));
  const heads = [...lists[side].querySelectorAll(".head")];
  const at = heads.indexOf(head);
  if (pressed === "ArrowDown") go(heads[at + 1]);
  else if (pressed === "ArrowUp") go(heads[at - 1] ?? of("query"));
  else if (pressed === "ArrowLeft" || pressed === "ArrowRight") {
    const to = pressed === "ArrowRight" ? 1 : 0;
    if (lists.length < 2 || to === side) return true;
    turn(to);
    const theirs = [...lists[to].querySelectorAll(".head")];
    const id = head.closest("li").dataset.id;
    go(theirs.find((one) => one.closest("li").dataset.id === id) ?? theirs[Math.min(at, theirs.length - 1)]);
  } else return false;
  return true;
}

function go(node) {
  node?.focus({ preventScroll: true });
  node?.scrollIntoView({ block: "nearest" });
}

of("ask").onsubmit = (event) => { event.preventDefault(); search(); };
of("unlock").onsubmit = (event) => {
  event.preventDefault();
  key = of("key").value.trim();
  of("key").value = "";
  if (about === null) begin();
  else search();
};
for (const id of ["first", "second", "count"]) of(id).onchange = search;
addEventListener("keydown", press);
addEventListener("popstate", restore);
addEventListener("resize", draw);
begin();

