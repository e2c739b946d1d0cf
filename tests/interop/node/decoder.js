// A decoder on llama.cpp that lets logitd process its logits: greedy without and with penalties in three forms of
// Apply, then a beam search.
//
//   node decoder.js unix:PATH MODEL.gguf
import { getLlama } from "node-llama-cpp";
import { applyEditsInPlace, applyPatchInPlace, bytesOf, packInts, unpack } from "./logits.js";
import { Batch, connect } from "./service.js";

const PROMPT = "The cat sat on the mat. The cat";
const NUM_TOKENS = 64;
const WIDTH = 4;
const PENALTIES = { repetitionPenalty: 1.2, frequencyPenalty: 0.2, presencePenalty: 0.1, minNewTokens: NUM_TOKENS };

const [target, modelPath] = process.argv.slice(2);
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath });
// One thread: llama.cpp's threads wait for each other by spinning, which crawls where others use the cores as well.
const context = await model.createContext({ sequences: WIDTH, contextSize: 256, threads: 1 });
const caches = Array.from({ length: WIDTH }, () => context.getSequence());
const prompt = model.tokenize(PROMPT);
const client = connect(target);

/** The logits after a history; what the cache holds of it is not computed again, but for the last token. */
async function logitsAfter(history, cache) {
  await cache.adaptStateToTokens(history.slice(0, -1), false);
  const rest = history.slice(cache.nextTokenIndex);
  const last = [rest.pop(), { generateNext: { logits: true } }];
  const outputs = await cache.controlledEvaluate([...rest, last]);
  const logits = new Float32Array(outputs.at(-1).next.logits.size);
  for (const [id, logit] of outputs.at(-1).next.logits) logits[id] = logit;
  return logits;
}

const argMax = (logits) => logits.reduce((best, logit, id) => (logit > logits[best] ? id : best), 0);

const toTensor = (rows) => ({
  dataType: "DATA_TYPE_FP32",
  shape: [rows.length, rows[0].length],
  data: Buffer.concat(rows.map(bytesOf)),
});

const sequence = (more) => ({
  sequenceId: "0",
  promptTokenIds: packInts(prompt),
  maxNewTokens: NUM_TOKENS,
  eosTokenIds: [model.tokens.eos],
  ...more,
});

/** What each form of Apply sends of the logits, and how its reply is put to use. */
const FORMS = {
  dense: {
    request: (logits) => ({ form: "APPLY_FORM_DENSE", logits: toTensor([logits]) }),
    process: (reply) => unpack(Float32Array, reply.dense.logits.data),
  },
  sparse: {
    request: (logits) => ({ form: "APPLY_FORM_SPARSE", logits: toTensor([logits]) }),
    process(reply, logits) {
      applyPatchInPlace(reply.sparse, logits, logits.length);
      return logits;
    },
  },
  edits: {
    request: () => ({ form: "APPLY_FORM_EDITS" }),
    process(reply, logits, profile) {
      applyEditsInPlace(reply.edits, profile, logits, logits.length);
      return logits;
    },
  },
};

async function decodeGreedily(form, penalties) {
  const request = { vocabSize: model.fileInfo.metadata.llama.vocab_size, sequences: [sequence({ penalties })] };
  const batch = await Batch.open(client, "Apply", request);
  const [cache] = caches;
  await cache.clearHistory();
  const output = [];
  while (output.length < NUM_TOKENS && output.at(-1) !== model.tokens.eos) {
    const logits = await logitsAfter([...prompt, ...output], cache);
    // The token of the step before travels with the logits that follow from it. The first step has none.
    const tokens = output.length ? { tokenIds: packInts(output.slice(-1)) } : undefined;
    const reply = await batch.step({ ...FORMS[form].request(logits), tokens }, tokens !== undefined);
    output.push(argMax(FORMS[form].process(reply, logits, batch.description.profile)));
  }
  await batch.delete();
  return output;
}

/** The first child of a row keeps its cache; the others take free ones, which catch up from where they differ. */
function inherit(rowCaches, parentRows) {
  const free = new Set(caches);
  const kept = parentRows.map((row) => (free.delete(rowCaches[row]) ? rowCaches[row] : undefined));
  const others = [...free];
  return kept.map((cache) => cache ?? others.pop());
}

async function searchBeams() {
  const request = {
    vocabSize: model.fileInfo.metadata.llama.vocab_size,
    kind: "BATCH_KIND_BEAM",
    sequences: [sequence({ beam: { width: WIDTH } })],
  };
  const batch = await Batch.open(client, "BeamStep", request);
  let rows = [prompt]; // at first one row, then the live beams
  let rowCaches = caches.slice(0, 1);
  for (;;) {
    const logits = await Promise.all(rows.map((history, row) => logitsAfter(history, rowCaches[row])));
    const reply = await batch.step({ logits: toTensor(logits) });
    const [search] = reply.searches;
    if (search.isDone) {
      await batch.delete();
      return search.hypotheses;
    }
    const parentRows = [...unpack(Int32Array, reply.parentRows)];
    const tokenIds = unpack(Int32Array, reply.tokenIds);
    rowCaches = inherit(rowCaches, parentRows);
    rows = parentRows.map((parent, row) => [...rows[parent], tokenIds[row]]);
  }
}

const print = (title, tokens) => console.log(`${title}: ${JSON.stringify(model.detokenize([...tokens]))}`);

print("no penalties", await decodeGreedily("dense", {}));
for (const form of Object.keys(FORMS)) print(`penalties, ${form}`, await decodeGreedily(form, PENALTIES));
for (const { tokenIds, score } of await searchBeams())
  print(`beam ${score.toFixed(4)}`, unpack(Int32Array, tokenIds));
await llama.dispose();
client.close();
