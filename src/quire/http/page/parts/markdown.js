// Markdown as models write it, as elements: no text becomes markup, and a link is a text.

import { h } from "../dom.js";

const FENCE = /^\s*(`{3,}|~{3,})/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^\s{0,3}>\s?/;
const ROW = /^\s*\|/;
const ADDRESS = /\]\(([^()\n]{0,2000}(?:\([^()\n]{0,2000}\)[^()\n]{0,2000})?)\)/y;
const DEEPEST = 6; // of quotes, lists and emphasis within each other

/** A text that grows. Only blocks that have changed are drawn anew. */
export class Markdown {
  #sources = [];

  constructor() { this.element = h("div", { class: "markdown" }); }

  show(text) {
    const blocks = blocksOf(text.split("\n"));
    const sources = blocks.map((block) => JSON.stringify(block));
    const changed = sources.findIndex((source, place) => source !== this.#sources[place]);
    const same = changed < 0 ? sources.length : changed;
    while (this.element.children.length > same) this.element.lastElementChild.remove();
    this.element.append(...blocks.slice(same).map((block) => draw(block, 0)));
    this.#sources = sources;
  }
}

/** What each run of lines is. */
function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  const take = (fits) => {
    const first = at;
    while (at < lines.length && fits(lines[at])) at += 1;
    return lines.slice(first, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      at += 1;
      const indent = line.search(/\S/);
      const code = take((next) => !closes(next, fence[1])).map((text) => unindented(text, indent));
      at += 1;
      blocks.push({ kind: "code", text: code.join("\n") });
    } else if (heading) {
      at += 1;
      blocks.push({ kind: "heading", level: heading[1].length, text: heading[2] });
    } else if (RULE.test(line)) {
      at += 1;
      blocks.push({ kind: "rule" });
    } else if (QUOTE.test(line)) {
      blocks.push({ kind: "quote", lines: take((next) => QUOTE.test(next)).map((text) => text.replace(QUOTE, "")) });
    } else if (ROW.test(line)) {
      blocks.push({ kind: "code", text: take((next) => ROW.test(next)).join("\n") });
    } else if (ITEM.test(line)) {
      blocks.push({ kind: "list", items: itemsOf(take((next) => ITEM.test(next) || isRest(next))) });
    } else blocks.push({ kind: "paragraph", text: take(isText).join("\n") });
  }
  return blocks;
}

const closes = (line, fence) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
const unindented = (line, indent) => line.slice(Math.min(indent, Math.max(0, line.search(/\S/))));
const isText = (line) => line.trim() !== "" && ![FENCE, HEADING, QUOTE, ITEM, RULE].some((form) => form.test(line));
const isRest = (line) => /^\s{2,}\S/.test(line) && !FENCE.test(line); // of the item before

function itemsOf(lines) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) items.push({ indent: item[1].length, number: item[3] ? Number(item[3]) : null, text: item[4] });
    else items.at(-1).text += `\n${line.trim()}`;
  }
  return items;
}

function draw(block, depth) {
  switch (block.kind) {
    case "code": return h("pre", { tabindex: 0 }, h("code", {}, block.text));
    case "heading": return h(`h${Math.min(6, block.level + 2)}`, {}, inline(block.text)); // below the page's own
    case "rule": return h("hr");
    case "quote": {
      const within = depth < DEEPEST ? blocksOf(block.lines) : [{ kind: "paragraph", text: block.lines.join("\n") }];
      return h("blockquote", {}, within.map((one) => draw(one, depth + 1)));
    }
    case "list": return list(block.items, depth);
  }
  return h("p", {}, inline(block.text));
}

/** Items that are further in than the one before are a list of its own within it. */
function list(items, depth) {
  const { indent, number } = items[0];
  const element = number === null ? h("ul") : h("ol", { start: number });
  for (let at = 0; at < items.length;) {
    let end = at + 1;
    while (depth < DEEPEST && end < items.length && items[end].indent > indent + 1) end += 1;
    const inner = items.slice(at + 1, end);
    element.append(h("li", {}, inline(items[at].text), inner.length ? list(inner, depth + 1) : null));
    at = end;
  }
  return element;
}

const EMPHASIS = { "**": "strong", "__": "strong", "~~": "del", "*": "em", "_": "em" };

/** Texts and elements of a line. What is opened and never closed is text; each is looked for once. */
function inline(text, depth = 0, unclosed = new Set()) {
  const nodes = [];
  let plain = "";
  const put = (node, next) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    return next;
  };
  for (let at = 0; at < text.length;) {
    const span = depth < DEEPEST ? spanAt(text, at, unclosed) : null;
    if (span) {
      const within = span.tag === "code" ? span.text : inline(span.text, depth + 1);
      const element = h(span.tag, {}, within);
      const { address } = span;
      if (address && address !== span.text) element.append(h("span", { class: "quiet" }, ` (${address})`));
      at = put(element, span.end);
    } else if (text[at] === "\n") at = put(h("br"), at + 1);
    else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) { plain += text[at + 1]; at += 2; }
    else { plain += text[at]; at += 1; }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function spanAt(text, at, unclosed) {
  const find = (mark, from) => {
    if (unclosed.has(mark)) return -1;
    const end = text.indexOf(mark, from);
    if (end < 0) unclosed.add(mark);
    return end;
  };
  if (text[at] === "`") {
    const mark = /^`+/.exec(text.slice(at, at + 32))[0];
    const end = find(mark, at + mark.length);
    if (end > 0) return { tag: "code", text: text.slice(at + mark.length, end), end: end + mark.length };
  } else if (text[at] === "[") {
    ADDRESS.lastIndex = find("](", at);
    const address = ADDRESS.lastIndex < 0 ? null : ADDRESS.exec(text);
    if (!address) return null;
    return { tag: "span", text: text.slice(at + 1, address.index), address: address[1], end: ADDRESS.lastIndex };
  } else {
    const mark = [text.slice(at, at + 2), text[at]].find((one) => Object.hasOwn(EMPHASIS, one));
    if (!mark || !/\S/.test(text[at + mark.length] ?? " ")) return null;
    const end = find(mark, at + mark.length + 1);
    if (end > 0 && /\S/.test(text[end - 1]) && !(mark.includes("_") && inWord(text, at, end + mark.length))) {
      return { tag: EMPHASIS[mark], text: text.slice(at + mark.length, end), end: end + mark.length };
    }
  }
  return null;
}

const inWord = (text, start, end) => /\w/.test(text[start - 1] ?? "") || /\w/.test(text[end] ?? "");
