// Vercel's AI SDK with its OpenAI-compatible provider against a scripted server: node vercel.mjs URL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({ name: "quern", baseURL: process.argv[2] + "/v1", includeUsage: true });
const model = provider.chatModel("any");
const say = (...replies) => replies.map((r) => `<|say|>${r}<|said|>`).join("");
const CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>';
const asked = [];
const tools = {
  get_weather: tool({
    description: "The weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), "rain"),
  }),
};

// whole and streamed, with reasoning
const prompt = say("<think>hm</think>Hello €😀");
const whole = await generateText({ model, prompt, maxRetries: 0 });
assert.deepEqual([whole.text, whole.reasoningText, whole.finishReason], ["Hello €😀", "hm", "stop"]);
const stream = streamText({ model, prompt, maxRetries: 0 });
let text = "";
for await (const delta of stream.textStream) text += delta;
assert.deepEqual([text, await stream.reasoningText], ["Hello €😀", "hm"]);
assert.deepEqual((await stream.usage).totalTokens, whole.usage.totalTokens);

// a loop of tools, both ways; usage counts each step once
const loop = { model, tools, prompt: say(`Look.${CALL}`, "It rains."), stopWhen: stepCountIs(4), maxRetries: 0 };
const done = await generateText(loop);
assert.deepEqual([done.text, done.steps.length, asked.length], ["It rains.", 2, 1]);
const steps = streamText(loop);
await steps.consumeStream();
assert.deepEqual([await steps.text, (await steps.steps).length, asked.length], ["It rains.", 2, 2]);
assert.equal((await steps.totalUsage).totalTokens, done.totalUsage.totalTokens);
assert.deepEqual(asked, ["Paris", "Paris"]);
console.log("ok");
