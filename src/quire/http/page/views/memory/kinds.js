// What a block does, as it is shown, and in which colour.

/** By place: a block's kind is a number. `colour`: a variable of style.css. */
export const KINDS = [
  { name: "used", colour: "--used", about: "Tokens are in it, and one sequence holds it" },
  { name: "shared", colour: "--shared", about: "Tokens are in it, and several sequences hold it: the more, the stronger" },
  { name: "window", colour: "--window", about: "Used until it is outside the window of its sequence" },
  { name: "sinks", colour: "--sink", about: "Attention sinks of a sequence, which stay" },
  { name: "reserved", colour: "--reserved", about: "Held for tokens that are not computed yet" },
  { name: "cached", colour: "--cached", about: "Free, but its tokens can be reused until it is taken" },
  { name: "free", colour: "--free", about: "Free and empty" },
];
const USED = 0, SHARED = 1, WINDOW = 2, SINK = 3, RESERVED = 4, CACHED = 5, FREE = 6;
export const OF_WINDOWS = new Set([WINDOW, SINK]);
const OF_STATE = [FREE, CACHED, RESERVED, USED, SINK, WINDOW]; // as blocks.js has them

/** The kind of a block of a BlockMap. */
export function kindOf(blocks, block) {
  const kind = OF_STATE[blocks.states[block]] ?? USED;
  return kind < RESERVED && blocks.shared[block] > 1 ? SHARED : kind;
}

/** How many blocks there are of each kind, and what sharing saves: blocks that more would be held. */
export function countKinds(blocks) {
  const counts = new Uint32Array(KINDS.length);
  let extra = 0;
  for (let block = 0; block < blocks.length; block += 1) {
    counts[kindOf(blocks, block)] += 1;
    if (blocks.shared[block] > 1) extra += blocks.shared[block] - 1;
  }
  const cached = counts[CACHED];
  return { counts, held: blocks.length - counts[FREE] - cached, cached, extra };
}

/** Blocks by whose they are on the map: of several holders, the one that came first. */
export function countOwners(blocks) {
  const counts = new Map();
  for (const owner of blocks.owners) if (owner) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  return counts;
}

// -- colours -------------------------------------------------------------------------------------

const DEPTHS = [0.55, 0.75, 1]; // from "used" to "shared": by 2 sequences, by 3 or 4, by more
const DIM = 0.82; // how far what is not looked at fades into the panel
const GOLDEN = 137.508; // degrees: numbers that follow each other get hues far apart

const pack = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
const mixed = (one, other, share) => one.map((value, i) => Math.round(value + (other[i] - value) * share));

function variable(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** OKLCH, in which equal lightness looks equally light, to sRGB. */
function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos(degrees * Math.PI / 180), b = chroma * Math.sin(degrees * Math.PI / 180);
  const [l, m, s] = [lightness + 0.3963377774 * a + 0.2158037573 * b, lightness - 0.1055613458 * a - 0.0638541728 * b,
    lightness - 0.0894841775 * a - 1.291485548 * b].map((value) => value ** 3);
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m
    - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((value) => {
    const light = Math.min(1, Math.max(0, value));
    return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
  });
}

/** Colours as a canvas's pixels have them, each bright and dim. */
export class Palette {
  constructor() { this.read(); }

  /** Anew: it has become dark, or light. */
  read() {
    this.panel = variable("--panel");
    const dark = this.panel[0] < 128;
    this.lightness = dark ? [0.72, 0.62, 0.8] : [0.6, 0.7, 0.5];
    this.kinds = KINDS.map((kind) => this.#pair(variable(kind.colour)));
    const [used, shared] = [USED, SHARED].map((kind) => variable(KINDS[kind].colour));
    this.depths = DEPTHS.map((depth) => this.#pair(mixed(used, shared, depth)));
    this.owners = new Map();
  }

  /** shared: by how many sequences. */
  kind(which, shared) {
    return which === SHARED ? this.depths[shared > 4 ? 2 : shared > 2 ? 1 : 0] : this.kinds[which];
  }

  owner(number) {
    if (!this.owners.has(number)) {
      if (this.owners.size > 10000) this.owners.clear(); // a server lives long
      this.owners.set(number, this.#pair(this.#ownColour(number)));
    }
    return this.owners.get(number);
  }

  css(number) { return `rgb(${this.#ownColour(number).join(" ")})`; }

  #ownColour(number) { return oklch(this.lightness[number % 3], 0.14, (number * GOLDEN) % 360); }

  #pair(colour) { return [pack(colour), pack(mixed(colour, this.panel, DIM))]; }
}
