// OpenAI's tool runner for Node: whole and streamed, into a full context and out again.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { check, cut, done, model, task, tools, url } from "./plan.mjs";

const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const runnable = tools.map(({ run, ...tool }) => ({
  type: "function",
  function: { ...tool, function: run, parse: JSON.parse },
}));

for (const stream of [false, true]) {
  const run = (messages) =>
    client.chat.completions.runTools({ model, messages, tools: runnable, stream });
  const runner = run([{ role: "user", content: task }]);
  await assert.rejects(runner.finalContent(), { code: "context_length_exceeded" });
  const history = [...runner.messages];
  history.at(-1).content = cut;
  assert.equal(await run(history).finalContent(), done);
  check();
}
