// The maps of all KV groups, in colours by state or by request.

import { h, setText } from "../../dom.js";
import { count } from "../../format.js";
import { Palette, kindOf } from "./kinds.js";
import { holderOf } from "./inspector.js";
import { BlockCanvas } from "./map.js";

/** What of a KV group is the draft model's: guesses need keys and values too. */
export function ofDraft(group) {
  if (!group?.draft_layers) return "";
  return group.layers ? `, ${count(group.draft_layers)} of ${count(group.layers + group.draft_layers)} of the draft model`
    : ", all of the draft model";
}

const LEAST = 2, MOST = 34; // pixels of the screen that a cell is wide

export class Maps {
  constructor(page, listener) {
    this.page = page;
    this.listener = { ...listener, colourOf: (block) => this.#colourOf(block) };
    this.by = "state"; // or "request"
    this.kind = null; // to be seen alone, by state
    this.held = null; // blocks of the selected request, as its block tables have them
    this.palette = new Palette();
    this.canvases = [];
    this.element = h("div", { class: "maps" });
    new ResizeObserver(() => { if (this.lay()) this.draw(null); }).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette.read();
      this.draw(null);
    });
  }

  /** Fit the maps into their place; whether that has changed anything. */
  lay() {
    const width = this.element.clientWidth, total = this.page.source.blocks.length;
    if (!width || !total) return false;
    const groups = this.#groups(total);
    if (groups.length !== this.canvases.length) this.#make(groups.length);
    const height = Math.max(220, Math.min(520, innerHeight * 0.42));
    const size = Math.max(LEAST, Math.min(MOST, Math.floor(Math.sqrt(width * height / total))));
    return groups.map((group, i) => {
      const { canvas, title } = this.canvases[i];
      setText(title, group.name);
      title.hidden = groups.length === 1 && !ofDraft(this.page.source.state?.pool.kv_groups[0]);
      return canvas.lay(group.first, group.count, size, width, group.name);
    }).some(Boolean);
  }

  /** Draw blocks that have changed; null: all. */
  draw(changed) {
    if (changed === null) this.lay();
    for (const { canvas } of this.canvases) canvas.paint(changed);
  }

  /** Ask which blocks the selected request holds: of shared ones the map knows the first owner only. */
  async look() {
    const { selected, source } = this.page, row = selected === null ? null : holderOf(source.state, selected);
    const story = row?.status === "running" ? await source.story?.(row.id)?.catch(() => null) : null;
    if (selected !== this.page.selected) return;
    const tables = (story?.tables ?? []).filter((table) => !table.on_host);
    const held = new Set(tables.flatMap((table) => table.kv_groups.flatMap((group) => group.blocks)));
    const before = this.held;
    this.held = story ? held : null;
    if (before?.size !== this.held?.size || [...held].some((block) => !before.has(block))) this.draw(null);
  }

  #make(count) {
    this.canvases = Array.from({ length: count }, () => ({ canvas: new BlockCanvas(this.listener), title: h("h3", {}) }));
    this.element.replaceChildren(...this.canvases.flatMap(({ title, canvas }) => [title, canvas.element]));
  }

  /** Until the state tells of KV groups, all blocks are one. */
  #groups(total) {
    const told = this.page.source.state?.pool.kv_groups ?? [];
    if (told.length < 2) return [{ first: 0, count: total, name: `All layers${ofDraft(told[0])}` }];
    if (told[1].first_block === 0) return [{ first: 0, count: total, name: "All layers, which share this memory: a block has "
      + told.map((group) => `${group.span} of its parts ${group.window === null ? "in those that see everything"
        : `in those with a window of ${count(group.window)} tokens`}`).join(", ") }];
    return told.map((group) => ({ first: group.first_block, count: group.num_blocks,
      name: (group.keeps_states ? "Layers that keep a state: a slot for each sequence, and snapshots"
        : group.window === null ? "Layers that see everything"
        : `Layers with a window of ${count(group.window)} tokens`) + ofDraft(group) }));
  }

  /** Blocks that the selected request holds: those that are bright. */
  countSelected() {
    let number = 0;
    for (let block = 0; block < this.page.source.blocks.length; block += 1) number += this.#isSelected(block);
    return number;
  }

  #isSelected(block) {
    const { blocks } = this.page.source, { selected } = this.page, owner = blocks.owners[block];
    return selected !== null && owner > 0 // among several: if it was when its tables were asked for
      && (owner === selected || (blocks.shared[block] > 1 && Boolean(this.held?.has(block))));
  }

  #colourOf(block) {
    const { blocks } = this.page.source, { selected } = this.page;
    const owner = blocks.owners[block], kind = kindOf(blocks, block), held = this.#isSelected(block);
    const pair = this.by === "request" && owner ? this.palette.owner(held ? selected : owner)
      : this.palette.kind(kind, blocks.shared[block]);
    const bright = this.by === "state" && this.kind !== null && this.kind !== kind ? false : selected === null || held;
    return pair[bright ? 0 : 1];
  }
}
