// The official OpenAI client against a scripted server: node openai.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "unused", maxRetries: 0 });
const model = "any";
const say = (...replies) => replies.map((r) => `<|say|>${r}<|said|>`).join("");
const user = (...replies) => [{ role: "user", content: say(...replies) }];
const CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>';
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

// chat, its stream, the stream helper
const messages = user(`<think>hm</think>Look. €😀${CALL}`);
const whole = await client.chat.completions.create({ model, messages, tools });
const helper = client.chat.completions.stream({ model, messages, tools, stream_options: { include_usage: true } });
let content = "";
helper.on("content", (delta) => (content += delta));
const final = await helper.finalChatCompletion();
assert.equal(content, "Look. €😀");
assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
assert.equal(final.choices[0].finish_reason, "tool_calls");
assert.deepEqual(final.choices[0].message.tool_calls.map((c) => c.function.name), ["get_weather"]);
assert.equal(final.usage.total_tokens, whole.usage.total_tokens);
let finishes = 0, usages = 0;
for await (const chunk of await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
})) {
  finishes += chunk.choices.some((c) => c.finish_reason) ? 1 : 0;
  usages += chunk.usage ? 1 : 0;
}
assert.deepEqual([finishes, usages], [1, 1]);

// a loop of tools
const asked = [];
const runner = client.chat.completions.runTools({
  model,
  messages: user(CALL, "It rains."),
  tools: [{
    type: "function",
    function: {
      name: "get_weather", parameters, parse: JSON.parse, description: "",
      function: (args) => (asked.push(args.city), "rain"),
    },
  }],
});
assert.equal(await runner.finalContent(), "It rains.");
assert.deepEqual(asked, ["Paris"]);

// structured output: asked for in words
const format = zodResponseFormat(z.object({ city: z.string(), inhabitants: z.number() }), "place");
const place = { model, messages: user('{"city": "Paris", "inhabitants": 2}'), response_format: format };
assert.equal(format.json_schema.strict, true);
const parsed = await client.chat.completions.parse(place);
assert.deepEqual(parsed.choices[0].message.parsed, { city: "Paris", inhabitants: 2 });

// completions
const text = await client.completions.create({ model, prompt: say("plain"), max_tokens: 3 });
assert.equal(text.choices[0].finish_reason, "length");

// abort
const long = await client.chat.completions.create({ model, messages: user("x".repeat(5000)), stream: true });
let n = 0;
for await (const _ of long) {
  if (++n === 10) long.controller.abort();
}
assert.ok(n >= 10 && n < 5000);

// responses
const flat = [{ type: "function", name: "get_weather", parameters, strict: false }];
const input = say(`<think>hm</think>Look. €${CALL}`, "It rains.");
const response = await client.responses.create({ model, input, tools: flat });
const stream = client.responses.stream({ model, input, tools: flat });
let delta = "", sequence = 0;
for await (const event of stream) {
  assert.equal(event.sequence_number, sequence++);
  if (event.type === "response.output_text.delta") delta += event.delta;
}
const last = await stream.finalResponse();
assert.equal(delta, "Look. €");
assert.deepEqual(last.output.map((o) => o.type), ["reasoning", "message", "function_call"]);
assert.equal(last.output_text, response.output_text);
assert.deepEqual(last.output.map((o) => o.arguments), response.output.map((o) => o.arguments));
const call = last.output.at(-1);
const next = await client.responses.create({
  model, tools: flat, previous_response_id: last.id,
  input: [{ type: "function_call_output", call_id: call.call_id, output: "rain" }],
});
assert.equal(next.output_text, "It rains.");
assert.equal((await client.responses.retrieve(next.id)).output[0].content[0].text, "It rains.");
await client.responses.delete(next.id);
await assert.rejects(client.responses.retrieve(next.id), OpenAI.NotFoundError);
await assert.rejects(client.responses.create({ model, input, previous_response_id: next.id }), OpenAI.NotFoundError);

// errors
await assert.rejects(client.chat.completions.create({ model, messages: [] }), OpenAI.BadRequestError);
console.log("ok");
