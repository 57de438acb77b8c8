// Who runs, who waits and why, who has given way.

import { figures, h, setText } from "../dom.js";
import { count, duration } from "../format.js";
import { abortButton, aborting } from "../parts/abort.js";
import { outputOf, requestPanel } from "../parts/request_panel.js";
import { Table } from "../parts/table.js";

export const requests = { id: "requests", title: "Requests", make };

const KINDS = [["running", "Running"], ["preempted", "Preempted"], ["waiting", "Waiting"]];
const any = (of) => (rows) => rows.some(of);
const number = (title, of, more) => ({ title, of, kind: "number", ...more });

const whole = (share) => `${Math.round(100 * share)} %`;
const besideOf = (row) => row.beside_seconds + row.grammar_seconds; // not a number in older recordings
const orDash = (value, text = String(value)) => (value ? text : "–");

const NAME = { title: "Request", of: (row) => row.id, kind: "name" };
const WHO = [
  { title: "Adapter", of: (row) => row.adapter ?? "–", show: any((row) => row.adapter) },
  number("Priority", (row) => String(row.priority), { show: any((row) => row.priority) }),
  number("Age", (row) => duration(row.seconds), { about: "since arrival" }),
  number("Prompt", (row) => count(row.prompt_tokens), { about: "tokens" }),
];
const OUTPUT = number("Output", (row) => outputOf(row, "/"), { about: "tokens, of the most there may be" });
const ENDS = number("Ends within", (row) => duration(row.ends_within_seconds),
  { about: "if its output becomes as long as allowed" });
const WHY = [{ title: "Why", of: (row) => row.wait.text, kind: "wide" },
  { title: "Setting to change", of: (row) => row.wait.remedy ?? "–", kind: "wide",
    show: any((row) => row.wait.remedy), about: "of quire serve, with the value with which it would run now" }];
const SINCE = number("Queue time", (row) => duration(row.waiting_seconds),
  { about: "since arrival, or since preemption" });

const COLUMNS = {
  running: [...WHO,
    number("Prefix cache hit", (row) => orDash(row.cached_tokens,
      `${count(row.cached_tokens)} (${whole(row.cached_tokens / row.prompt_tokens)})`), { about: "prompt tokens" }),
    number("Cached tokens lost", (row) => orDash(row.miss?.lost_tokens, count(row.miss?.lost_tokens)),
      { show: any((row) => row.miss?.lost_tokens), about: "read before, and read again: choose the request to see why" }),
    number("Fetched", (row) => count(row.fetched_tokens),
      { show: any((row) => row.fetched_tokens), about: "tokens, from outside the pool" }),
    number("Computed", (row) => count(row.computed_tokens), { about: "tokens" }), OUTPUT,
    number("Accepted drafts", (row) => (row.draft_tokens
      ? `${whole(row.accepted_tokens / row.draft_tokens)} of ${count(row.draft_tokens)}` : "–"),
      { show: any((row) => row.draft_tokens) }),
    number("Branches", (row) => orDash(row.branches > 1 && row.branches), { show: any((row) => row.branches > 1) }),
    number("Blocks", (row) => `${count(row.blocks)} / ${count(row.peak_blocks)}`, { about: "now, and at most" }),
    number("Shared, copied", (row) => orDash(row.shared_blocks, `${count(row.shared_blocks)}, ${count(row.copied_blocks)}`),
      { show: any((row) => row.shared_blocks + row.copied_blocks), about: "blocks" }),
    number("Block-seconds", (row) => row.block_seconds.toFixed(1)),
    number("Beside the model", (row) => orDash(besideOf(row), duration(besideOf(row))), { show: any(besideOf),
      about: "log-probabilities, edits of logits, stop strings, grammar" }),
    number("Preemptions", (row) => orDash(row.swaps + row.recomputes),
      { show: any((row) => row.swaps + row.recomputes), about: "until it ran again" }), ENDS],
  preempted: [...WHY, SINCE,
    { title: "By", of: (row) => (row.on_host ? "swap" : "recompute") },
    number("Preemptions", (row) => count(row.swaps + row.recomputes), { about: "times" }), ...WHO, OUTPUT],
  waiting: [...WHY, SINCE,
    number("Begins in", (row) => duration(row.wait.predicted_seconds),
      { about: "estimate, by how fast others were admitted" }), ENDS, ...WHO],
};

function make(page) {
  const dialog = aborting();
  const act = { title: "Action", kind: "act", of: (row) => abortButton(page, dialog, row.id) };
  const panel = requestPanel({ close: () => choose(null), button: (id) => abortButton(page, dialog, id),
    clock: (time) => page.source.clock(time) });
  const head = figures(["running", "preempted", "waiting", "all admitted within", "forecasts that came true"]);
  const filter = h("input", { type: "search", placeholder: "name or adapter", oninput: () => state(),
    "aria-label": "only requests whose name or adapter has this" });
  const nobody = h("p", { class: "panel quiet", hidden: true }, "No request is running or waiting.");
  const lists = KINDS.map(([kind, title]) => {
    const table = new Table({ label: `${title} requests`, columns: [NAME, act, ...COLUMNS[kind]],
      key: (row) => row.id, choose: (id) => choose(id) });
    return { kind, table, element: h("section", { class: "panel", hidden: true }, h("h2", {}, title), table.element) };
  });
  const element = h("div", { class: "grid requests" },
    h("section", { class: "panel requests-head" }, head.element, filter),
    h("div", { class: "requests-body" },
      h("div", { class: "grid" }, nobody, lists.map((list) => list.element)), panel.element),
    dialog.element);
  let chosen = null, gone = null; // names; gone: has ended

  function choose(id) {
    chosen = id === chosen ? null : id;
    for (const { table } of lists) table.mark(chosen);
    panel.element.hidden = chosen === null;
    if (chosen === null) { page.selected = null; return; }
    page.selected = find(chosen)?.number ?? null;
    panel.open(chosen);
    gone = null;
    if (find(chosen)) panel.show(asFarAsKnown(chosen), page.source.state.pool.block_size);
    tell();
    panel.element.scrollIntoView({ block: "nearest" });
  }

  const everybody = () => KINDS.flatMap(([kind]) => page.source.state.requests[kind]);
  const find = (id) => everybody().find((row) => row.id === id);

  /** Without its tables: nobody looked at them in a recording, or they are still to come. */
  const asFarAsKnown = (id) => ({ request: find(id), tables: [], prompt: null,
    decisions: page.source.decisions.filter((one) => one.request_id === id) });

  async function tell() {
    const asked = chosen, { block_size: size } = page.source.state.pool;
    let story = null;
    try { story = await page.source.story(asked); } catch (error) { if (error.status !== 404) return; }
    if (asked !== chosen) return;
    if (!story && !page.source.live && find(asked)) story = asFarAsKnown(asked);
    if (story) return panel.show(story, size);
    gone = asked;
    panel.ended();
  }

  function state() {
    const { requests: told, queue_predicted_seconds: within, forecasts } = page.source.state;
    head.put({ "running": count(told.num_running), "preempted": count(told.num_preempted),
      "waiting": count(told.num_waiting), "all admitted within": told.num_waiting ? duration(within) : "–",
      "forecasts that came true": forecasts?.count ? whole(forecasts.first_tokens) : "–" }); // none in older recordings
    nobody.hidden = everybody().length > 0;
    for (const { kind, table, element: section } of lists) {
      const rows = told[kind].filter((row) => `${row.id} ${row.adapter ?? ""}`.includes(filter.value.trim()));
      section.hidden = told[kind].length === 0;
      table.draw(rows, filter.value.trim() ? rows.length : told[`num_${kind}`]);
    }
    if (chosen !== null && chosen !== gone) tell();
  }

  function shown() {
    if (page.source.state === null) return;
    state();
    const selected = everybody().find((row) => row.number === page.selected);
    if (selected && selected.id !== chosen) choose(selected.id);
  }
  return { element, state, shown };
}
