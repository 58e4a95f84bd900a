// Makes a tool round trip and reads a stream with the Vercel AI SDK, through /v1/responses and /v1/messages.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { FACET_URL: url, FACET_KEY: apiKey, FACET_MODEL: name } = process.env;
const tools = {
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      assert.equal(city, "Lisbon");
      return { weather: "rain", degrees: 12 };
    },
  }),
};
const models = {
  "openai, responses": createOpenAI({ baseURL: `${url}/v1`, apiKey })(name),
  "openai, chat": createOpenAI({ baseURL: `${url}/v1`, apiKey }).chat(name),
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey })(name),
};
for (const [kind, model] of Object.entries(models)) {
  const question = {
    model, tools, prompt: "What is the weather in Lisbon?", temperature: 0, maxOutputTokens: 64, stopWhen: stepCountIs(3),
  };
  const told = await generateText(question);
  assert.match(told.text, /12/);
  let text = "";
  for await (const part of streamText(question).textStream) text += part;
  assert.equal(text, told.text);
  console.log(`ai_sdk (${kind}): a tool round trip and a stream`);
}
