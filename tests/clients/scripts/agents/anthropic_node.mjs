// Anthropic's tool runner for Node: whole and streamed, into a full context and out again.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { check, cut, done, model, task, tools, url } from "./plan.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const runnable = tools.map(({ parameters, ...tool }) =>
  betaTool({ ...tool, inputSchema: parameters }),
);

// Go on until no tool is called; the history grows with each turn.
async function run(history, stream) {
  const runner = client.beta.messages.toolRunner({
    model,
    max_tokens: 1000,
    tools: runnable,
    messages: [...history],
    stream,
  });
  let message;
  for await (const turn of runner) {
    message = stream ? await turn.finalMessage() : turn;
    history.push({ role: "assistant", content: message.content });
    const results = await runner.generateToolResponse();
    if (results) history.push(results);
  }
  return message.content[0].text;
}

for (const stream of [false, true]) {
  const history = [{ role: "user", content: task }];
  await assert.rejects(run(history, stream), (error) => {
    assert(error instanceof Anthropic.BadRequestError, error);
    assert.match(error.message, /prompt is too long/);
    return true;
  });
  history.at(-1).content[0].content = cut;
  assert.equal(await run(history, stream), done);
  check();
}
