// One request: its figures, its block tables, and what was decided about it.

import { figures, h, setText, setWords } from "../dom.js";
import { count, counted, duration, percent } from "../format.js";

const MOST_CELLS = 400; // of a branch's table in one KV group

const FIGURES = {
  "prompt": (row) => count(row.prompt_tokens), "computed": (row) => count(row.computed_tokens),
  "output": (row) => outputOf(row, "of"),
  "prefix cache hit": (row) => `${count(row.cached_tokens)} (${percent(row.cached_tokens / row.prompt_tokens)})`,
  "fetched": (row) => count(row.fetched_tokens),
  "accepted draft tokens": (row) => (row.draft_tokens ? `${count(row.accepted_tokens)} of ${count(row.draft_tokens)}` : "–"),
  "blocks now": (row) => count(row.blocks), "at most": (row) => count(row.peak_blocks),
  "shared": (row) => count(row.shared_blocks), "copied": (row) => count(row.copied_blocks),
  "block-seconds": (row) => row.block_seconds.toFixed(1), "branches": (row) => count(row.branches),
  "beside the model": besideOf,
  "preempted": (row) => `${counted(row.swaps, "swap")}, ${counted(row.recomputes, "recompute")}`,
};

/** Tokens, of at most; of several branches, some of which may have ended, each may have as many. */
export function outputOf(row, of) {
  const several = row.branches > 1 || row.output_tokens > row.max_tokens;
  return `${count(row.output_tokens)} ${of} ${count(row.max_tokens)}${several ? " each" : ""}`;
}

/** Time for what a request asks for beside tokens; older recordings know none. */
function besideOf(row) {
  const steps = row.beside_seconds ? duration(row.beside_seconds) : "";
  const grammar = row.grammar_seconds ? `grammar ${duration(row.grammar_seconds)}` : "";
  return [steps, grammar].filter(Boolean).join(", ") || "–";
}

/** clock(time): as it is written. `open(id)`, then `show(story)` each time that there is one, or `ended()`. */
export function requestPanel({ close, button, clock }) {
  const title = h("h2", { class: "mono" }), standing = h("p", { class: "standing" });
  const act = h("div", { class: "choices" });
  const told = figures(Object.keys(FIGURES));
  const miss = h("p", { hidden: true });
  const tables = h("div", { class: "block-tables" });
  const line = h("ol", { class: "timeline" });
  const texts = h("div", { class: "texts" });
  const element = h("section", { class: "panel request-panel", hidden: true, "aria-label": "One request" },
    h("div", { class: "request-head" }, title, act), standing, told.element, miss,
    h("h3", {}, "Block tables"), tables, h("h3", {}, "Decisions"), line, texts);
  let drawn = null;

  function open(id) {
    setText(title, id);
    setText(standing, "");
    act.replaceChildren(button(id), h("button", { onclick: close }, "Close"));
    for (const part of [tables, line, texts]) part.replaceChildren();
    drawn = null;
    miss.hidden = true;
    element.hidden = false;
    element.classList.remove("ended");
  }

  function ended() {
    element.classList.add("ended");
    act.firstChild.hidden = true;
    setText(standing, drawn ? "It has ended. This is its last known state." : "It has ended.");
  }

  function show(story, blockSize) {
    setWords(standing, standingOf(story.request));
    told.put(Object.fromEntries(Object.entries(FIGURES).map(([name, of]) => [name, of(story.request)])));
    miss.hidden = !story.request.miss; // older recordings know none
    setText(miss, story.request.miss ? `Prefix cache: ${story.request.miss.text}.` : "");
    if (JSON.stringify(story.tables) !== drawn) {
      drawn = JSON.stringify(story.tables);
      tables.replaceChildren(...story.tables.map((branch) => branchTables(branch, story.tables.length, blockSize)));
    }
    const last = String(story.decisions.at(-1)?.number);
    if (line.childElementCount !== story.decisions.length || line.dataset.last !== last) {
      line.dataset.last = last;
      line.replaceChildren(...story.decisions.map((one) => decision(one, clock)));
    }
    if (story.prompt !== null) showTexts(texts, story);
  }
  return { element, open, show, ended };
}

function standingOf(row) {
  const ends = (row.ends_within_seconds === null ? "" : `; ends within ${duration(row.ends_within_seconds)}`) + forecastOf(row);
  if (row.wait === null) return `Came ${duration(row.seconds)} ago${ends}.`;
  const since = row.waiting_seconds === null ? "a long time" : duration(row.waiting_seconds);
  const begins = row.wait.predicted_seconds === null ? "" : `; likely to begin in ${duration(row.wait.predicted_seconds)}`;
  const remedy = row.wait.remedy ? ` To admit it now: ${row.wait.remedy}.` : "";
  return `Has waited for ${since}: ${row.wait.text}${begins}${ends}.${remedy}`;
}

/** What was expected when it came; older recordings know none. */
function forecastOf(row) {
  if (row.expected_first_token == null) return "";
  return `; expected when it came: first token after ${duration(row.expected_first_token)}, end after ${duration(row.expected_end)}`;
}

// -- block tables ------------------------------------------------------------------------------------

function branchTables(branch, branches, blockSize) {
  const where = branch.on_host ? ", on the host" : "";
  const name = branches > 1 ? `Branch ${branch.branch}: ` : "";
  const head = `${name}${counted(branch.tokens, "token")}, ${count(branch.computed_tokens)} computed${where}`;
  return h("div", {}, h("p", { class: "quiet" }, head),
    branch.kv_groups.length === 0 ? h("p", { class: "quiet" }, "It holds no blocks now.") : null,
    branch.kv_groups.map((table, i) => groupTable(table, branch, branch.kv_groups.length > 1 ? i : null, blockSize)));
}

function groupTable(table, branch, number, blockSize) {
  const cells = table.blocks.slice(0, MOST_CELLS).map((block, place) => blockCell(table, branch, block, place, blockSize));
  const left = table.blocks.length - cells.length;
  if (left > 0) cells.push(h("li", { class: "quiet" }, `and ${count(left)} more`));
  return h("div", {}, number === null ? null : h("p", { class: "quiet" },
    `KV group ${number}${table.dropped ? `, ${counted(table.dropped, "block")} outside its window` : ""}`),
  h("ol", { class: "cells" }, cells));
}

function blockCell(table, branch, block, place, size) {
  const holders = table.holders[place] ?? 1;
  const isSink = place < table.sink_blocks;
  const first = (isSink ? place : place + table.dropped) * size;
  const held = Math.max(0, Math.min(size, branch.tokens - first));
  const kind = isSink ? "sink" : holders > 1 ? "shared" : held < size ? "partly" : "full";
  const what = held ? `tokens ${count(first)} to ${count(first + held - 1)}` : "reserved";
  const by = holders > 1 ? `, held by ${holders} sequences` : "";
  return h("li", { class: kind, title: `block ${block}: ${isSink ? "attention sink, " : ""}${what}${by}` },
    String(block), holders > 1 ? h("sup", {}, `×${holders}`) : null);
}

// -- decisions and texts -----------------------------------------------------------------------------

const cost = (one) => (one.swap_seconds === null ? ""
  : ` Swap costs ${duration(one.swap_seconds)}, recompute ${duration(one.recompute_seconds)}.`);

function decision(one, clock) {
  const needs = one.needed === null ? "" : `: needs ${counted(one.needed, one.unit.slice(0, -1))}, ${count(one.free)} free`;
  return h("li", { class: one.what }, h("time", {}, clock(one.time)), " ", h("b", {}, one.what),
    ` ${one.why}${needs}.${cost(one)}`);
}

function showTexts(element, story) {
  const parts = [["Prompt", story.prompt], ...story.outputs.map((text, i) => [`Output ${i}`, text])];
  element.replaceChildren(...parts.flatMap(([name, text]) => [h("h3", {}, name), h("pre", {}, text)]));
}
