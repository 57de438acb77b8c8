// Every block of the pool: what it does, whose it is, and what its slots have done of late.

import { figures, h, setText, setWords } from "../dom.js";
import { count, counted, duration, percent } from "../format.js";
import { Chart } from "../parts/chart.js";
import { Comparison } from "./memory/comparison.js";
import { Inspector, holderOf } from "./memory/inspector.js";
import { countKinds } from "./memory/kinds.js";
import { KindLegend, OwnerLegend, shortened } from "./memory/legend.js";
import { Maps } from "./memory/maps.js";

export const memory = { id: "memory", title: "Memory", make: (page) => new MemoryView(page) };

const SLOTS = [["used", "--used"], ["reserved", "--reserved"], ["internal", "--internal"], ["external", "--external"],
  ["cached", "--cached"], ["free", "--free"]];
const LAG = 0.05; // seconds, from which it is shown
const FIGURES = ["slots used", "blocks held", "cached, for prefix hits", "saved by sharing", "held slots in use, since the start"];

class MemoryView {
  constructor(page) {
    this.page = page;
    const choose = (number) => page.select(number === page.selected ? null : number);
    this.figures = figures(FIGURES);
    this.said = h("p", { class: "memory-said" });
    this.maps = new Maps(page, {
      looked: (block, byKey) => this.inspector.show(block ?? this.pinned, byKey),
      chosen: (block) => this.#choose(block, choose), dropped: () => page.select(null),
    });
    this.pinned = null; // the block that was clicked, told of while nobody points at another
    this.inspector = new Inspector(page, choose);
    this.kinds = new KindLegend((kind) => { this.maps.kind = kind; this.maps.draw(null); });
    this.owners = new OwnerLegend(choose);
    this.comparison = new Comparison();
    this.slots = new Chart({
      title: "Every slot, over the last ten minutes", stacked: true, top: 1, clock: (...time) => page.source.clock(...time),
      format: (share) => `${Math.round(100 * share)} %`,
      series: SLOTS.map(([name, colour]) => ({ name, colour, of: ({ slots }) => slots[name] / sum(slots) })),
    });
    this.element = h("div", { class: "memory grid" }, this.#pool(),
      h("section", { class: "panel slots" }, this.slots.element), this.comparison.element);
  }

  #pool() {
    this.by = h("fieldset", { class: "switch" }, h("legend", { class: "unseen" }, "Colour blocks by"),
      ["state", "request"].map((by, i) => h("label", {}, h("input", { type: "radio", name: "colour-by", value: by,
        checked: i === 0, onchange: () => this.#colourBy(by) }), `by ${by}`)));
    this.only = h("button", { class: "only", hidden: true, onclick: () => this.page.select(null) });
    this.owners.element.hidden = true;
    return h("section", { class: "panel pool" },
      h("header", {}, h("h2", {}, "Memory"), this.by, this.only), this.figures.element, this.said,
      h("div", { class: "pool-body" }, h("div", { class: "maps-side" }, this.maps.element, this.kinds.element, this.owners.element),
        this.inspector.element));
  }

  #colourBy(by) {
    this.maps.by = by;
    this.kinds.element.hidden = by !== "state";
    this.owners.element.hidden = by !== "request";
    this.shown();
  }

  #choose(block, choose) {
    this.pinned = block;
    const owner = this.page.source.blocks.owners[block];
    if (owner) choose(owner); else if (this.page.selected !== null) this.page.select(null);
  }

  // -- what the page tells ---------------------------------------------------------------------

  shown() {
    this.maps.lay();
    this.#drawBlocks(null);
    if (this.page.source.state) this.state();
  }

  state() {
    const { state } = this.page.source;
    if (this.maps.lay()) this.maps.draw(null); // the KV groups are known now
    this.maps.look();
    this.kinds.windowed = state.pool.kv_groups.some((group) => group.window !== null);
    this.#tell();
    this.inspector.ask();
  }

  blocks(changed) { this.#drawBlocks(changed); }

  #drawBlocks(changed) {
    const { blocks } = this.page.source;
    this.maps.draw(changed);
    const { counts, held, cached, extra } = countKinds(blocks);
    this.kinds.put(counts);
    this.figures.put({
      "blocks held": `${count(held)} of ${count(blocks.length)}`, "cached, for prefix hits": count(cached),
      "saved by sharing": counted(extra, "block"),
    });
    this.#tell();
    this.inspector.draw();
    const { selected } = this.page;
    Object.assign(this.element.dataset, { step: blocks.step, frame: blocks.number ?? "", selected: selected ?? "" });
  }

  /** What goes with the blocks, of their moment. */
  #tell() {
    const { state, pressure, lag, blocks, history } = this.page.source;
    if (!pressure) return;
    const { time, pool, first } = pressure;
    const isNewer = time > (history.latest?.time ?? 0);
    this.slots.draw(isNewer ? [...history.points, { time, slots: pool.slots }] : history.points);
    this.figures.put({
      "slots used": percent(pool.slots.used / sum(pool.slots)),
      "held slots in use, since the start": percent(pressure.kv_efficiency),
    });
    this.said.classList.toggle("pressed", first !== null);
    const before = lag > LAG ? ` That was ${duration(lag)} before this map.` : "";
    setWords(this.said, (first ? why(first) : quiet(pressure)) + before);
    this.comparison.put(pressure);
    if (!this.owners.element.hidden) this.owners.put(state, blocks, this.maps.palette, this.page.selected);
    const { selected } = this.page, row = selected === null ? null : holderOf(state, selected);
    this.only.hidden = selected === null;
    setText(this.only, row ? `only ${shortened(row.id)}: ${counted(this.maps.countSelected(), "block")} ×`
      : "only one that has ended ×");
  }
}

/** Why the first in the queue waits, and the settings with which it would not. */
function why({ status, wait }) {
  const remedy = wait.remedy ? ` To admit it now: ${wait.remedy}.` : "";
  return `First in the queue${status === "preempted" ? ", preempted" : ""}: ${wait.text}.${remedy}`;
}

function quiet({ pool, num_running }) {
  if (num_running) return "All requests are running; none waits.";
  if (pool.held_blocks) return "No request is running; held blocks belong to sessions between two turns.";
  const kept = pool.cached_blocks ? `; ${counted(pool.cached_blocks, "block")} keep text for prefix hits` : "";
  return `No request is running: all ${counted(pool.num_blocks, "block")} of ${pool.block_size} tokens are available${kept}.`;
}

const sum = (slots) => Object.values(slots).reduce((one, other) => one + other, 0);
