// Elements, made and changed without markup in strings: no text of a request is ever read as HTML.

/** An element. `props`: attributes; `class`, `dataset`; on…: listeners. Children: nodes or texts. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change a text only if it differs, so that nothing is laid out again for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The same of a text that may name flags, which are not broken at their hyphens. */
export function setWords(element, text) {
  if (element.textContent === text) return;
  const parts = text.split(/(--[a-z][a-z-]+)/);
  element.replaceChildren(...parts.map((part, i) => (i % 2 ? h("code", { class: "flag" }, part) : part)));
}

/** Change the children only if they are others, so that focus and scrolling stay. */
export function setChildren(element, ...children) {
  const now = element.childNodes;
  const same = children.length === now.length && children.every((child, place) => now[place] === child);
  if (!same) element.replaceChildren(...children);
}

/** Figures as a `dl`; `put({name: text})` changes them. */
export function figures(names) {
  const values = Object.fromEntries(names.map((name) => [name, h("dd", {}, "–")]));
  const element = h("dl", { class: "figures" },
    names.map((name) => h("div", {}, h("dt", {}, name), values[name])));
  return { element, put: (texts) => {
    for (const [name, text] of Object.entries(texts)) setText(values[name], text);
  } };
}
