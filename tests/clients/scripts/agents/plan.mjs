// What agents in Node are asked to do: three calls, the second of which fills the context.
import assert from "node:assert/strict";

export const url = process.env.QUIRE_URL;
export const model = process.env.QUIRE_MODEL;
export const task =
  "DO " +
  JSON.stringify([
    ["weather", { city: "Paris" }],
    ["read", { path: "long.txt" }],
    ["weather", { city: "Rome" }],
  ]);
export const cut = "It was long.";
export const done = "Done.";

const long = "word ".repeat(Number(process.env.QUIRE_CONTEXT));
const heard = [];
const one = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
  additionalProperties: false,
});
export const tools = [
  {
    name: "weather",
    description: "The weather of a city",
    parameters: one("city"),
    run: ({ city }) => (heard.push(city), "hot"),
  },
  {
    name: "read",
    description: "A file",
    parameters: one("path"),
    run: ({ path }) => (heard.push(path), long),
  },
];

// All was called, once each, and in turn.
export function check() {
  assert.deepEqual(heard.splice(0), ["Paris", "long.txt", "Rome"]);
}
