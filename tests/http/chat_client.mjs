// A client of a chat service, by OpenAI's library for JavaScript. It prints the answer, the error of a denied call that may
// not wait, and the answer to one that may.
//
// `./test chat` runs the test that asks a server by this program.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any key" });

async function chat(options) {
  const messages = [{ role: "user", content: "hello" }];
  const answer = await client.chat.completions.create({ model: "any", messages }, options);
  console.log(answer.choices[0].message.content);
}

await chat();
await chat({ maxRetries: 0 }).catch((error) => console.log(error.message));
await chat();
