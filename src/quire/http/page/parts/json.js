// JSON for people: as it was written, but indented.

/** The text with line ends and indents. What is in it stays to the letter, numbers of any length too. */
export function indented(text) {
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [piece] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    if (piece === "{" || piece === "[") { depth += 1; out += piece + line(); }
    else if (piece === "}" || piece === "]") {
      depth -= 1;
      out = /[{[]\s*$/.test(out.slice(-200)) ? out.trimEnd() + piece : out + line() + piece;
    } else out += piece + (piece === "," ? line() : piece === ":" ? " " : "");
  }
  return out;
}

/** {text, valid, why}: indented if it is whole. */
export function readJson(text) {
  try {
    JSON.parse(text);
    return { text: indented(text), valid: true, why: "" };
  } catch (error) { return { text, valid: false, why: error.message }; }
}
