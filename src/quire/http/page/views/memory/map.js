// The blocks of one KV group, a pixel each on a canvas that is shown enlarged.

import { h } from "../../dom.js";
import { counted } from "../../format.js";

const GRID_FROM = 5; // pixels of the screen, from which cells are set apart
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -8], PageDown: [0, 8] };

/**
 * colourOf(block): its pixel. looked(block, byKey): somebody points at it; null: no longer.
 * chosen(block): clicked, tapped, or Enter.
 */
export class BlockCanvas {
  constructor({ colourOf, looked, chosen, dropped }) {
    Object.assign(this, { colourOf, looked, chosen, dropped });
    this.first = this.count = this.columns = this.size = 0;
    this.at = null; // the block that is pointed at
    this.canvas = h("canvas", {});
    this.context = this.canvas.getContext("2d");
    this.lines = h("div", { class: "map-lines" });
    this.mark = h("div", { class: "map-mark", hidden: true });
    this.cells = h("div", { class: "map-cells", "aria-hidden": "true" }, this.canvas, this.lines, this.mark);
    this.element = h("div", {
      class: "map", tabindex: "0", role: "application", "aria-roledescription": "map of blocks",
      onkeydown: (event) => this.#press(event), onfocus: () => this.#focus(), onblur: () => this.look(null),
      onpointermove: (event) => this.look(this.#under(event)), onpointerleave: () => this.look(null),
      onclick: (event) => { const block = this.#under(event); if (block !== null) this.#choose(block); },
    }, this.cells);
  }

  /** Hold these blocks, in cells of so many pixels and no wider than that. */
  lay(first, count, size, width, name) {
    const columns = Math.max(1, Math.min(count, Math.floor(width / size)));
    if (first === this.first && count === this.count && columns === this.columns && size === this.size) return false;
    Object.assign(this, { first, count, columns, size });
    this.rows = Math.ceil(count / columns);
    this.canvas.width = columns;
    this.canvas.height = this.rows;
    this.image = new ImageData(columns, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.cells.style.width = `${columns * size}px`;
    this.cells.style.height = `${this.rows * size}px`;
    this.lines.style.backgroundSize = `${size}px ${size}px`;
    this.lines.hidden = size < GRID_FROM;
    this.mark.style.width = this.mark.style.height = `${size}px`;
    this.element.setAttribute("aria-label", `${name}: ${counted(count, "block")}. Arrow keys go from block to block, `
      + "Enter selects the request that holds it, Escape selects none.");
    return true;
  }

  /** Draw those of `changed` that are here, or all if it is null. */
  paint(changed) {
    const { first, count, columns, pixels } = this;
    let low = 0, high = count - 1;
    if (changed === null) {
      for (let i = 0; i < count; i += 1) pixels[i] = this.colourOf(first + i);
    } else {
      low = count; high = -1;
      for (const block of changed) {
        const i = block - first;
        if (i < 0 || i >= count) continue;
        pixels[i] = this.colourOf(block);
        if (i < low) low = i;
        if (i > high) high = i;
      }
    }
    if (high < low) return;
    const top = Math.floor(low / columns), bottom = Math.floor(high / columns);
    this.context.putImageData(this.image, 0, 0, 0, top, columns, bottom - top + 1);
  }

  /** Point at a block of this map, or at none. */
  look(block, byKey = false) {
    if (block === this.at) return;
    this.at = block;
    this.mark.hidden = block === null;
    if (block !== null) {
      const i = block - this.first;
      this.mark.style.left = `${(i % this.columns) * this.size}px`;
      this.mark.style.top = `${Math.floor(i / this.columns) * this.size}px`;
    }
    this.looked(block, byKey);
  }

  #under(event) {
    const { left, top } = this.cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - left) / this.size), row = Math.floor((event.clientY - top) / this.size);
    const i = row * this.columns + column;
    const inside = column >= 0 && column < this.columns && row >= 0 && i < this.count;
    return inside ? this.first + i : null;
  }

  #choose(block) {
    this.look(block);
    this.chosen(block);
  }

  #focus() { // by key only: a click points already
    if (this.at === null && this.element.matches(":focus-visible")) this.look(this.first, true);
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const now = (this.at ?? this.first) - this.first, { key } = event;
    if (key === "Enter" || key === " ") this.#choose(this.first + now);
    else if (key === "Escape") this.dropped();
    else if (key === "Home" || key === "End") this.look(this.first + (key === "Home" ? 0 : this.count - 1), true);
    else if (key in STEPS) {
      const [right, down] = STEPS[key], next = now + right + down * this.columns;
      if (next >= 0 && next < this.count) this.look(this.first + next, true);
    } else return;
    event.preventDefault();
    this.mark.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
