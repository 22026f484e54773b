// One pair after another. Texts are written as text, never as markup; an answer counts when the server has kept it.
"use strict";

const person = (new URLSearchParams(location.search).get("person") ?? "").trim();
const keys = { ArrowLeft: "left", 1: "left", ArrowRight: "right", 2: "right", u: "unsure", U: "unsure" };
const of = (id) => document.getElementById(id);
const scrolls = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
let seen = null; // the pair on the screen
let waiting = false; // a request is under way: a key that is pressed meanwhile would answer an unseen pair

async function ask(path, said) {
  const how = said && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(said) };
  const answer = await fetch(path, how);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function go(path, said) {
  if (waiting) return;
  waiting = true;
  for (const button of of("answers").children) button.disabled = true;
  try {
    seen = await ask(path, said);
    of("fault").hidden = true;
    show();
  } catch (error) {
    fail(error);
  } finally {
    waiting = false;
    for (const button of of("answers").children) button.disabled = false;
  }
}

function fail(error) {
  const gone = error instanceof TypeError; // what fetch says where nobody answers
  of("fault").textContent = gone ? "Not kept: anmi label does not answer. Start it again and open the address that it prints." : `Not kept: ${error.message}`;
  of("fault").hidden = false;
  if (seen === null) of("pair").hidden = false;
}

function show() {
  const done = seen.left === undefined;
  of("pair").hidden = done;
  of("done").hidden = !done;
  of("thanks").textContent = `${seen.answered} of ${seen.total} pairs.`;
  if (done) return;
  of("query").textContent = seen.query;
  of("count").textContent = `${seen.answered} of ${seen.total}`;
  of("bar").value = seen.answered / seen.total;
  for (const side of ["left", "right"]) {
    const [title, text] = of(side).children;
    title.textContent = seen[side].title;
    text.textContent = seen[side].text;
    of(side).scrollTop = 0;
    of(side).classList.toggle("given", seen.given === side);
  }
  for (const button of of("answers").children) {
    button.classList.toggle("given", seen.given !== null && button.dataset.side === seen.given);
  }
  scrollTo(0, 0);
}

const answer = (side) => seen && seen.left && go("answer", { person, at: seen.at, side });
const back = () => seen && seen.at > 0 && go(`pair?${new URLSearchParams({ person, at: seen.at - 1 })}`);

// Both documents at once, where they scroll by themselves; on a narrow screen the page does.
function scroll(event, lines) {
  const panes = ["left", "right"].map(of).filter((pane) => pane.scrollHeight > pane.clientHeight);
  for (const pane of panes) pane.scrollBy({ top: lines * 40 });
  if (panes.length) event.preventDefault();
}

function press(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (scrolls[event.key]) return scroll(event, scrolls[event.key]);
  if (event.repeat) return; // a key that is held down answers once
  if (event.key === "Backspace") back();
  else if (keys[event.key]) answer(keys[event.key]);
  else return;
  event.preventDefault();
}

async function start() {
  const { people, free } = await ask("people");
  for (const name of people) {
    const button = document.createElement("button");
    button.textContent = name;
    button.onclick = () => location.assign(`?${new URLSearchParams({ person: name })}`);
    of("names").append(button);
  }
  of("new").hidden = free < 1;
  of("full").hidden = free > 0;
  of("start").hidden = false;
  if (free > 0) of("name").focus();
}

if (person) {
  addEventListener("keydown", press);
  for (const button of of("answers").children) {
    button.onclick = () => (button.dataset.side ? answer(button.dataset.side) : back());
  }
  go(`pair?${new URLSearchParams({ person })}`);
} else {
  start();
}
