// The official Anthropic client against a scripted server: node anthropic.mjs URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const base = { model: "any", max_tokens: 500 };
const say = (...replies) => replies.map((r) => `<|say|>${r}<|said|>`).join("");
const CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>';
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "The weather.", input_schema }];

// thinking, text, thinking, call; the stream adds up to the reply
const text = `<think>hm</think>Look. €😀<think>so</think>${CALL}`;
const messages = [{ role: "user", content: "Weather?" + say(text, "It rains.") }];
const whole = await client.messages.create({ ...base, messages, tools });
const stream = client.messages.stream({ ...base, messages, tools });
let shown = "", thought = "", json = "";
stream.on("text", (t) => (shown += t));
stream.on("thinking", (t) => (thought += t));
stream.on("inputJson", (t) => (json += t));
const final = await stream.finalMessage();
const bare = (m) => m.content.map(({ id, ...rest }) => JSON.parse(JSON.stringify(rest)));
assert.deepEqual(final.content.map((c) => c.type), ["thinking", "text", "thinking", "tool_use"]);
assert.deepEqual(bare(final), bare(whole));
assert.deepEqual([shown, thought, JSON.parse(json)], ["Look. €😀", "hmso", { city: "Paris" }]);
assert.equal(final.stop_reason, "tool_use");

// counting
const counted = await client.messages.countTokens({ model: "any", messages, tools });
const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = final.usage;
assert.equal(counted.input_tokens, input_tokens + cache_read_input_tokens + cache_creation_input_tokens);

// the next turn of the loop
const call = final.content.at(-1);
const answer = await client.messages.create({
  ...base, tools,
  messages: [...messages, { role: "assistant", content: final.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "rain" }] }],
});
assert.deepEqual([answer.content[0].text, answer.stop_reason], ["It rains.", "end_turn"]);

// abort, errors
const long = client.messages.stream({ ...base, max_tokens: 5000, messages: [{ role: "user", content: say("x".repeat(4000)) }] });
let n = 0;
await assert.rejects(async () => {
  for await (const _ of long) {
    if (++n === 10) long.abort();
  }
  await long.finalMessage();
}, Anthropic.APIUserAbortError);
await assert.rejects(client.messages.create({ ...base, messages: [] }), (e) => {
  assert.ok(e instanceof Anthropic.BadRequestError && e.requestID);
  assert.equal(e.error.error.type, "invalid_request_error");
  return true;
});
console.log("ok");
