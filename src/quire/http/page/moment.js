// One moment of a recording as a page of its own, which needs no server: bundle.py puts it together.

import { fromBase64 } from "./blocks.js";
import { Recording } from "./recording.js";
import { Replay } from "./replay.js";
import { memory } from "./views/memory.js";

/** To the view "memory" what main.js's page is to all of them. */
class Moment {
  constructor(recording) {
    this.selected = null;
    this.source = new Replay(this, recording);
    this.view = memory.make(this);
    this.view.element.querySelector(".slots").remove(); // a chart over time
    document.getElementById("view").append(this.view.element);
    this.source.start();
    this.view.shown();
  }

  select(number) {
    this.selected = number;
    this.view.shown();
  }

  state() { this.view.state(); }

  blocks(changed) { this.view.blocks(changed); }
}

const packed = fromBase64(document.querySelector("meta[name=quire-recording]").content);
Recording.read(new Blob([packed])).then((recording) => new Moment(recording));
