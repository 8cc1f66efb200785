// The bodies of a chat service's clients, by the libraries of OpenAI and Anthropic for JavaScript. It prints the status of
// each call, and the quota that the answer shows.
//
// `./test chat` runs the test that asks the program of `examples/max_tokens.rs` by this one.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const messages = [{ role: "user", content: "hello" }];
const options = (name) => ({
  baseURL: process.argv[2], apiKey: "any", maxRetries: 0, defaultHeaders: { "x-user": name },
});

async function say(call, form) {
  try {
    const { data, response } = await call({ model: "any", messages, ...form }).withResponse();
    let isWhole = !form.stream;
    if (form.stream) for await (const _ of data) isWhole = true;
    console.log(response.status, response.headers.get("ratelimit").split(";t=")[0], isWhole);
  } catch (error) {
    console.log(error.status, error.constructor.name);
  }
}

const openai = new OpenAI(options("openai"));
for (const form of [
  { max_tokens: 2 },
  { max_completion_tokens: 50 },
  { max_tokens: 9, max_completion_tokens: 1 },
  { max_tokens: null, max_completion_tokens: null },
  { stream: true },
  { n: 2, max_tokens: 3 },
  { n: null },
  { n: 9, max_tokens: 9 },
  { n: 99, max_tokens: 3 },
]) await say((body) => openai.chat.completions.create(body), form);

const anthropic = new Anthropic(options("anthropic"));
for (const form of [
  { max_tokens: 2 },
  { max_tokens: 2, stream: true },
  { max_tokens: 2, system: null, n: null },
  { max_tokens: 9, n: 12 },
  { max_tokens: 9, n: 99 },
]) await say((body) => anthropic.messages.create(body), form);
