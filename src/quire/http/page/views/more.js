// What is on of sessions, adapters, ranks, the store and speculation; and what bounds them all.

import { figures, h, setText } from "../dom.js";
import { bytes, count, counted, duration, percent } from "../format.js";
import { Table } from "../parts/table.js";

export const more = { id: "more", title: "More", make };

const number = (title, of, about) => ({ title, of, kind: "number", about });
const orNone = (value) => (value === null ? "any" : count(value));

const ENGINE = {
  "model": (state) => state.model, "Quire": (state) => state.version, "steps": (state) => count(state.step),
  "ranks": (state) => (state.ranks === null ? "1" : count(state.ranks)),
  "pool": (state) => `${counted(state.pool.num_blocks, "block")} of ${count(state.pool.block_size)}`,
  "held slots in use, since the start": (state) => percent(state.kv_efficiency),
};

const SETTINGS = {
  "max_model_len": (set) => orNone(set.max_model_len), "max_num_seqs": (set) => count(set.max_num_seqs),
  "max_num_batched_tokens": (set) => count(set.max_num_batched_tokens),
  "max_num_waiting": (set) => orNone(set.max_num_waiting),
  "max_queue_time": (set) => (set.max_queue_time === null ? "any" : duration(set.max_queue_time)),
  "scheduling_policy": (set) => set.scheduling_policy,
};

const SPECULATION = {
  "drafters, in this order": (told) => told.drafters.join(", "), "sequences drafted for": (told) => counted(told.drafts, "time"),
  "drafts": (told) => count(told.draft_tokens), "accepted": (told) => count(told.accepted_tokens),
  "acceptance rate": (told) => percent(told.draft_tokens ? told.accepted_tokens / told.draft_tokens : null),
  "memory": (told) => bytes(told.bytes),
};

const STORE = {
  "on disk": (told) => bytes(told.bytes), "now": (told) => (told.writing ? "writing" : "quiet"),
  "read": (told) => counted(told.read_blocks, "block"), "written": (told) => counted(told.written_blocks, "block"),
  "evicted": (told) => counted(told.evicted_blocks, "block"), "damaged": (told) => counted(told.bad_blocks, "block"),
};

const orDash = (value) => (value === null || value === undefined ? "–" : count(value)); // older recordings tell less
const KV_GROUPS = [
  { title: "KV group", of: (one) => String(one.place) }, number("Blocks", (one) => count(one.num_blocks)),
  number("Held", (one) => orDash(one.held_blocks)), number("Cached", (one) => orDash(one.cached_blocks)),
  number("First block", (one) => count(one.first_block)),
  number("Layers", (one) => orDash(one.layers), "of the model, whose keys and values are in its blocks"),
  { ...number("Draft layers", (one) => orDash(one.draft_layers), "of the draft model"), show: (all) => all.some((one) => one.draft_layers) },
  number("Window", (one) => (one.keeps_states ? "a state" : one.window === null ? "all" : counted(one.window, "token")), "tokens that its layers see"),
];
const SESSIONS = [
  { title: "Session", of: (one) => one.id, kind: "name" },
  { title: "Now", of: (one) => (one.busy ? "running a turn" : "idle") },
  number("Tokens", (one) => count(one.tokens)), number("Blocks", (one) => count(one.blocks)),
  number("Cache epoch", (one) => count(one.cache_epoch), "how often it was cut"),
];
const ADAPTERS = [
  { title: "Adapter", of: (one) => one.name, kind: "name" },
  { title: "Runs", of: (one) => (one.running ? "yes" : "no") },
  { title: "In memory", of: (one) => (one.in_memory ? "yes" : "no") },
];

/** Drafts by their place in a guess: how many of the first, the second … were right. */
function byPosition() {
  const list = h("ol", { class: "bars" });
  return { element: list, draw(told) {
    const all = Math.max(1, told.drafts);
    list.replaceChildren(...told.accepted_by_position.map((right, i) => {
      const bar = h("span", { class: "bar" });
      bar.style.width = `${100 * right / all}%`;
      return h("li", {}, h("span", {}, `draft ${i + 1}`), h("span", { class: "rail" }, bar),
        h("b", {}, percent(right / all)));
    }));
  } };
}

function part(title, kind) {
  const nothing = h("p", { class: "quiet", hidden: true });
  const element = h("section", { class: "panel" }, h("h2", {}, title), nothing, kind);
  return { element, show(some, why) {
    nothing.hidden = some;
    setText(nothing, some ? "" : why);
    for (const child of kind) child.hidden = !some;
  } };
}

const told = (specified, thing) => Object.fromEntries(
  Object.entries(specified).map(([name, of]) => [name, of(thing)]));

function make(page) {
  const [engine, settings, speculation, store] = [ENGINE, SETTINGS, SPECULATION, STORE]
    .map((one) => figures(Object.keys(one)));
  const groups = new Table({ label: "KV groups", columns: KV_GROUPS, key: (one) => one.place });
  const sessions = new Table({ label: "Sessions", columns: SESSIONS, key: (one) => one.id });
  const adapters = new Table({ label: "Adapters", columns: ADAPTERS, key: (one) => one.name });
  const positions = byPosition();
  const parts = {
    speculation: part("Speculation", [speculation.element, positions.element]),
    sessions: part("Sessions", [sessions.element]), adapters: part("Adapters", [adapters.element]),
    store: part("Block store", [store.element]),
  };
  const element = h("div", { class: "grid more" },
    h("section", { class: "panel" }, h("h2", {}, "Engine"), engine.element, groups.element),
    h("section", { class: "panel" }, h("h2", {}, "Settings"), settings.element),
    Object.values(parts).map((one) => one.element));

  function state() {
    const now = page.source.state;
    engine.put(told(ENGINE, now));
    settings.put(told(SETTINGS, now.settings));
    groups.element.hidden = now.pool.kv_groups.length < 2 && !now.pool.kv_groups[0].draft_layers;
    groups.draw(now.pool.kv_groups.map((one, place) => ({ ...one, place })));
    parts.speculation.show(now.speculation !== null, "Off: --speculative-config turns it on.");
    if (now.speculation) { speculation.put(told(SPECULATION, now.speculation)); positions.draw(now.speculation); }
    parts.sessions.show(now.num_sessions > 0,
      "None is open. POST /v1/sessions opens one, a text that lives across requests.");
    sessions.draw(now.sessions, now.num_sessions);
    parts.adapters.show(now.adapters !== null && now.adapters.length > 0, now.adapters
      ? "None is loaded." : "Off: --enable-lora serves adapters beside the model.");
    adapters.draw(now.adapters ?? []);
    parts.store.show(now.store !== null, "Off: --kv-store keeps blocks on disk, outside the pool and the process.");
    if (now.store) store.put(told(STORE, now.store));
  }
  return { element, state, shown: () => page.source.state && state() };
}
