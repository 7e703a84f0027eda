// A provider file for the pi coding agent; QUERN_URL is the server.
const BASE_URL = process.env.QUERN_URL + "/v1";

export default async function (pi: any) {
  const reply = await fetch(BASE_URL + "/models", { signal: AbortSignal.timeout(2000) });
  const { data } = await reply.json();
  const served = data.find((row: any) => row.context_window) ?? data[0];
  pi.registerProvider("quern", {
    baseUrl: BASE_URL,
    apiKey: "sk-quern-local",
    api: "openai-completions",
    models: [{
      id: "local",
      name: `${served.id} (quern local)`,
      reasoning: served.reasoning,
      compat: { supportsDeveloperRole: false, ...(served.reasoning ? { thinkingFormat: "qwen-chat-template" } : {}) },
      input: served.vision ? ["text", "image"] : ["text"],
      cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
      contextWindow: served.context_window ?? 32768,
      maxTokens: Number(process.env.QUERN_MAX_TOKENS ?? 8192),
    }],
  });
}
