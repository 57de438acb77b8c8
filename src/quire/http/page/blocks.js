// Every block of the pool, read from the frames of /v1/quire/blocks (docs/reference/http.md has their form).

export const STATES = ["free", "cached", "reserved", "used", "sink", "window"];
const HEADER = 24;

export class BlockMap {
  constructor() { this.resize(0); this.step = 0; this.time = 0; this.number = null; }

  get length() { return this.states.length; }

  resize(size) {
    this.owners = new Uint32Array(size);
    this.shared = new Uint16Array(size);
    this.found = new Uint16Array(size);
    this.states = new Uint8Array(size);
  }

  /** Take a frame in. The blocks that have changed; null: look at all of them. */
  apply(frame) {
    const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
    if (view.getUint16(0) !== 0x5142 || view.getUint8(2) !== 1) throw new Error("no frame of blocks");
    const isDelta = view.getUint8(3) === 1;
    const size = view.getUint32(12, true);
    this.number = view.getUint32(4, true);
    this.step = view.getUint32(8, true);
    this.time = view.getFloat64(16, true);
    let at = HEADER;
    const column = (Kind) => {
      const bytes = frame.slice(at, at + size * Kind.BYTES_PER_ELEMENT); // aligned, as a copy
      at += bytes.length;
      return new Kind(bytes.buffer);
    };
    const which = isDelta ? column(Uint32Array) : null;
    const columns = [column(Uint32Array), column(Uint16Array), column(Uint16Array), column(Uint8Array)];
    if (which === null) {
      [this.owners, this.shared, this.found, this.states] = columns;
      return null;
    }
    const own = [this.owners, this.shared, this.found, this.states];
    columns.forEach((values, kind) => which.forEach((block, place) => { own[kind][block] = values[place]; }));
    return which;
  }
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
