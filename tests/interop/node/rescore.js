// Scores token ids with one pass over a fresh cache, to check a decode that shared and moved its caches.
//
//   node rescore.js MODEL.gguf < '{"prompt": [ids], "outputs": [[ids], ...]}'
//
// prints the mean log-probability of each output's tokens, as JSON.
import { readFileSync } from "node:fs";
import { getLlama } from "node-llama-cpp";

const { prompt, outputs } = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath: process.argv[2] });
const context = await model.createContext({ contextSize: 256, threads: 1 });
const sequence = context.getSequence();

function logProb(logits, id) {
  const values = [...logits.values()];
  const [top] = values; // the greatest comes first
  return logits.get(id) - top - Math.log(values.reduce((sum, value) => sum + Math.exp(value - top), 0));
}

const scores = [];
for (const output of outputs) {
  await sequence.clearHistory();
  const tokens = [...prompt, ...output.slice(0, -1)];
  const wanted = { generateNext: { logits: true } };
  const input = tokens.map((id, place) => (place < prompt.length - 1 ? id : [id, wanted]));
  const results = (await sequence.controlledEvaluate(input)).slice(prompt.length - 1);
  const sum = results.reduce((total, { next }, place) => total + logProb(next.logits, output[place]), 0);
  scores.push(sum / output.length);
}
console.log(JSON.stringify(scores));
await llama.dispose();
