// OpenAI's client for Node: chats, streams, tools, structured text, responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.QUIRE_MODEL;
const client = new OpenAI({
  baseURL: process.env.QUIRE_URL + "/v1",
  apiKey: "none",
  maxRetries: 0,
});
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), hot: z.boolean() });
const tool = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

const whole = await client.chat.completions.create({ model, messages, max_tokens: 8 });
assert(whole.choices[0].message.content);
let text = "";
for await (const chunk of await client.chat.completions.create({
  model,
  messages,
  max_tokens: 8,
  stream: true,
})) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert(text);
const parsed = await client.chat.completions.parse({
  model,
  messages,
  response_format: zodResponseFormat(Weather, "weather"),
});
Weather.parse(parsed.choices[0].message.parsed);
const called = await client.chat.completions
  .stream({ model, messages, tools: [tool], tool_choice: "required" })
  .finalChatCompletion();
JSON.parse(called.choices[0].message.tool_calls[0].function.arguments);
const first = await client.responses.create({ model, input: "hello", max_output_tokens: 8 });
assert(first.output_text);
const types = [];
for await (const event of await client.responses.create({
  model,
  input: "go on",
  previous_response_id: first.id,
  max_output_tokens: 8,
  stream: true,
})) {
  types.push(event.type);
}
assert.equal(types[0], "response.created");
await assert.rejects(
  client.chat.completions.create({ model: "gpt-9", messages }),
  OpenAI.NotFoundError,
);
