// A running server as a source of moments: its state each second, its blocks as they change.

import { NeedsLogin, ask, events, getJson } from "./api.js";
import { BlockMap, fromBase64 } from "./blocks.js";
import { clock } from "./format.js";
import { History, pressureOf } from "./history.js";

const EVERY = 1000; // milliseconds
const MOST_DECISIONS = 1000;

/**
 * A source: what the views are shown. Another is the replay of a recording (replay.js).
 *
 * state, decisions (oldest first), blocks, history: as of now; `state` is null before the first.
 * pressure: the figures that go with `blocks`: of the same moment, or (`lag`) seconds before it.
 * age(ofBlocks): seconds since what is shown was so.
 * clock(time, seconds): a time of its states as people write it.
 * listener.state(), listener.blocks(changed): something is new; changed: null for all blocks.
 * listener.lost(error): nothing comes any more, for now.
 * watch(wanted): whether anybody looks at blocks; false saves the server work.
 * story(id): of one request, null where nothing is known; holders(block): only of a server.
 */
export class Live {
  constructor(listener) {
    this.listener = listener;
    this.live = true;
    this.clock = clock;
    this.state = null;
    this.decisions = [];
    this.blocks = new BlockMap();
    this.history = new History();
    this.latest = null; // the pressure that came with the latest frame
    this.lag = 0;
    this.heard = { state: 0, blocks: 0 }; // when
    this.streams = false; // frames come as soon as blocks change
    this.wantsBlocks = true;
    this.stopping = null;
    this.recorder = null;
  }

  /** Keep what comes from now on, or (null) no longer. */
  record(recorder) {
    this.recorder = recorder;
    if (this.stopping) { this.stop(); this.start(); } // for a snapshot, if blocks are to be kept
  }

  start() {
    if (this.stopping) return;
    this.stopping = new AbortController();
    this.#poll(this.stopping.signal);
    if (this.wantsBlocks || this.recorder) this.#watch(this.stopping.signal);
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
    this.streams = false;
  }

  /** Watch blocks or not. */
  watch(wanted) {
    if (wanted === this.wantsBlocks) return;
    this.wantsBlocks = wanted;
    if (this.stopping) { this.stop(); this.start(); }
  }

  get pressure() { return this.latest ?? (this.state && pressureOf(this.state)); }

  age(ofBlocks) {
    const { state, blocks } = this.heard;
    const heard = !ofBlocks || blocks === 0 ? state : this.streams ? Math.max(state, blocks) : blocks;
    return (performance.now() - heard) / 1000;
  }

  /** One request with its block tables. */
  async story(id) {
    const story = await getJson(`v1/quire/requests/${encodeURIComponent(id)}`);
    this.recorder?.story(this.state.time, story);
    return story;
  }

  /** Who holds a block, and which of their tokens are in it. */
  holders(block) { return getJson(`v1/quire/blocks/${block}`); }

  /** What the charts have missed. */
  async #remember(signal) {
    try {
      this.history.recall((await getJson("v1/quire/history", { signal })).data);
      this.listener.state();
    } catch { /* the charts begin now; what is wrong is told by the poll */ }
  }

  async #poll(signal) {
    while (!signal.aborted) {
      const isFirst = this.state === null;
      try {
        const state = await getJson("v1/quire/state", { signal });
        if (this.state && state.step < this.state.step) this.decisions = [];
        if (isFirst) this.#show(state); // what it has decided is asked for while it is looked at
        await this.#learn(state, signal);
        this.recorder?.state(state);
        this.#show(state);
      } catch (error) {
        if (signal.aborted) return;
        this.listener.lost(error);
        if (error instanceof NeedsLogin) return this.stop();
      }
      if (isFirst && this.state) this.#remember(signal);
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  #show(state) {
    this.state = state;
    this.heard.state = performance.now();
    this.history.add(state);
    this.listener.state();
  }

  /** The decisions since those that are known. */
  async #learn(state, signal) {
    const since = this.decisions.at(-1)?.number ?? 0;
    if (state.latest_decision === since) return;
    const told = await getJson(`v1/quire/decisions?since=${since}`, { signal });
    this.recorder?.decisions(state.time, told.data);
    this.decisions = [...this.decisions, ...told.data].slice(-MOST_DECISIONS);
  }

  async #watch(signal) {
    while (!signal.aborted) {
      try {
        const response = await ask("v1/quire/blocks?stream=true&pressure=true", { signal });
        for await (const data of events(response)) this.#take(JSON.parse(data));
      } catch (error) {
        if (signal.aborted || error instanceof NeedsLogin) return; // the poll tells of it
      } finally {
        if (!signal.aborted) this.streams = false; // figures stay with the map that is shown
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  /** A frame, or null where no block has changed, and the figures of its moment. */
  #take({ blocks: frame, pressure }) {
    const changed = frame === null ? [] : this.blocks.apply(fromBase64(frame));
    if (frame !== null) this.recorder?.blocks(this.blocks.time, frame);
    this.latest = pressure;
    this.streams = true;
    this.heard.blocks = performance.now();
    this.listener.blocks(changed);
  }
}
