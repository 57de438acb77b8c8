// Vercel's AI SDK, by its providers for OpenAI, for what is compatible with it, and Anthropic.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const url = process.env.QUIRE_URL + "/v1";
const name = process.env.QUIRE_MODEL;
const apiKey = "none";
const compatible = createOpenAICompatible({
  name: "quire",
  baseURL: url,
  apiKey,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: url, apiKey });
const anthropic = createAnthropic({ baseURL: url, apiKey });
const schema = z.object({ city: z.enum(["Paris", "Rome"]), hot: z.boolean() });
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => `hot in ${city}`,
});
const prompt = "What is the weather in Paris?";

for (const model of [compatible(name), openai.chat(name), openai(name), anthropic(name)]) {
  const ask = { model, prompt, maxRetries: 0, maxOutputTokens: 300 };
  assert((await generateText({ ...ask, maxOutputTokens: 12 })).text);
  let text = "";
  for await (const piece of streamText({ ...ask, maxOutputTokens: 12 }).textStream) text += piece;
  assert(text);
  const { object } = await generateObject({ ...ask, schema });
  schema.parse(object);
  const { steps } = await generateText({
    ...ask,
    tools: { weather },
    toolChoice: "required",
    stopWhen: stepCountIs(2), // the second one sends back what the first one has called
  });
  assert.equal(steps.length, 2);
  assert.match(steps[0].toolResults[0].output, /^hot in/);
}
