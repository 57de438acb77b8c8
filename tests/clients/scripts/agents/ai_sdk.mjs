// The loop of Vercel's AI SDK, by each of its providers, into a full context and out again.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { check, cut, done, model as name, task, tools, url } from "./plan.mjs";

const baseURL = url + "/v1";
const apiKey = "none";
const compatible = createOpenAICompatible({ name: "quire", baseURL, apiKey });
const openai = createOpenAI({ baseURL, apiKey });
const anthropic = createAnthropic({ baseURL, apiKey });
const runnable = Object.fromEntries(
  tools.map(({ name, description, parameters, run }) => [
    name,
    tool({ description, inputSchema: jsonSchema(parameters), execute: run }),
  ]),
);

// Go on until no tool is called; the history grows with each step.
async function run(model, history, stream) {
  const begun = [...history];
  const options = {
    model,
    messages: begun,
    tools: runnable,
    maxRetries: 0,
    stopWhen: stepCountIs(8),
    onStepFinish: ({ response }) => history.splice(0, Infinity, ...begun, ...response.messages),
  };
  if (!stream) return (await generateText(options)).text;
  let text = "";
  for await (const part of streamText({ ...options, onError: () => {} }).fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

for (const model of [compatible(name), openai.chat(name), openai(name), anthropic(name)]) {
  for (const stream of [false, true]) {
    const history = [{ role: "user", content: task }];
    await assert.rejects(run(model, history, stream), (error) => {
      assert(APICallError.isInstance(error) && error.statusCode === 400, error);
      assert.match(error.message, /context_length_exceeded|prompt is too long/);
      return true;
    });
    history.at(-1).content[0].output = { type: "text", value: cut };
    assert.equal(await run(model, history, stream), done);
    check();
  }
}
