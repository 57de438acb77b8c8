// A running server as a source of moments: its state each second, its blocks as they change.

import { NeedsLogin, ask, events, getJson } from "./api.js";
import { BlockMap, fromBase64 } from "./blocks.js";
import { clock } from "./format.js";
import { History } from "./history.js";

const EVERY = 1000; // milliseconds
const MOST_DECISIONS = 1000;

/**
 * A source: what the views are shown. Another is the replay of a recording (replay.js).
 *
 * state, decisions (oldest first), blocks, history: as of now; `state` is null before the first.
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
  }

  /** Watch blocks or not. */
  watch(wanted) {
    if (wanted === this.wantsBlocks) return;
    this.wantsBlocks = wanted;
    if (this.stopping) { this.stop(); this.start(); }
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
        const response = await ask("v1/quire/blocks?stream=true", { signal });
        for await (const data of events(response)) {
          const changed = this.blocks.apply(fromBase64(data));
          this.recorder?.blocks(this.blocks.time, data);
          this.listener.blocks(changed);
        }
      } catch (error) {
        if (signal.aborted || error instanceof NeedsLogin) return; // the poll tells of it
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }
}
