// The latest preemptions, each with the estimated costs of swap and recompute.

import { h, setText } from "../dom.js";
import { duration } from "../format.js";
import { Table } from "./table.js";

const MOST = 8;

const columns = (page) => [
  { title: "Time", of: (one) => page.source.clock(one.time) },
  { title: "Request", of: (one) => one.request_id, kind: "name" },
  { title: "Preempted by", of: (one) => one.what },
  { title: "Swap costs", of: (one) => duration(one.swap_seconds), kind: "number" },
  { title: "Recompute costs", of: (one) => duration(one.recompute_seconds), kind: "number" },
  { title: "Why", of: (one) => one.why, kind: "wide" },
];

export function preemptions(page) {
  const table = new Table({ label: "The latest preemptions", columns: columns(page), key: (one) => one.number });
  const remedy = h("p", { class: "quiet" });
  const element = h("section", { class: "panel", hidden: true },
    h("h2", {}, "The latest preemptions"), remedy, table.element);
  return { element, draw(decisions) {
    const found = decisions.filter((one) => one.what === "swap" || one.what === "recompute");
    element.hidden = found.length === 0;
    setText(remedy, found.at(-1)?.remedy ? `What would help: ${found.at(-1).remedy}.` : "");
    table.draw(found.slice(-MOST).reverse(), found.length);
  } };
}
