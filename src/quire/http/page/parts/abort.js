// Ending somebody's request, once it has been asked whether that is meant.

import { ask } from "../api.js";
import { h, setText } from "../dom.js";

/** `element`: a dialog, to be put somewhere; `open(id)` asks. */
export function aborting() {
  const name = h("code"), told = h("p", { class: "error", role: "alert" });
  const keep = h("button", { type: "button", onclick: () => element.close() }, "Let it run");
  const end = h("button", { type: "button", class: "danger" }, "End it");
  const element = h("dialog", { "aria-labelledby": "abort-title", class: "abort" },
    h("h2", { id: "abort-title" }, "End this request?"), h("p", {}, name),
    h("p", { class: "quiet" }, "Its client is told that the operator has ended it, and its blocks are free at once."),
    told, h("div", { class: "choices" }, keep, end));

  function open(id) {
    setText(name, id);
    setText(told, "");
    end.disabled = false;
    end.onclick = async () => {
      end.disabled = true;
      try {
        await ask(`v1/quire/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
        element.close();
      } catch (error) {
        setText(told, error.message || "The server wants a login first.");
      }
    };
    element.showModal();
    keep.focus();
  }
  return { element, open };
}

/** A button that asks to end a request; `page.source` must be a server. */
export const abortButton = (page, dialog, id) => h("button", {
  class: "danger", "aria-label": `end request ${id}`, disabled: !page.source.live,
  title: page.source.live ? null : "This is a recording", onclick: () => dialog.open(id),
}, "End");
