// Checks this language against the golden vectors, without a server.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { applyEditsInPlace, applyPatchInPlace, bytesOf, unpack } from "./logits.js";
import { load } from "./service.js";

const [, ...lines] = readFileSync(new URL("../vectors/vectors.tsv", import.meta.url), "utf8").trimEnd().split("\n");
const exchanges = lines.map((line) => {
  const [scenario, rpc, request, status, reply] = line.split("\t");
  return { scenario, rpc, request: Buffer.from(request, "hex"), status, reply: Buffer.from(reply, "hex") };
});

const { Apply } = load({ enums: String, defaults: true });

/** The Apply messages of a scenario, parsed. */
const applies = (scenario) =>
  exchanges
    .filter((exchange) => exchange.scenario === scenario && exchange.rpc === "Apply")
    .map(({ request, reply }) => ({
      request: Apply.requestDeserialize(request),
      reply: Apply.responseDeserialize(reply),
    }));

test("every message holds known fields only", () => {
  assert.ok(exchanges.length > 100);
  const methods = load({}); // defaults would be written where a field is not set
  for (const { scenario, rpc, request, status, reply } of exchanges) {
    const { requestSerialize, requestDeserialize, responseSerialize, responseDeserialize } = methods[rpc];
    // Their order is free, so that only their number of bytes must be the same.
    assert.equal(requestSerialize(requestDeserialize(request)).length, request.length, scenario);
    if (status === "0") assert.equal(responseSerialize(responseDeserialize(reply)).length, reply.length, scenario);
  }
});

for (const form of ["sparse", "edits"])
  test(`${form} comes to the bits of the dense replies`, () => {
    const dense = applies("dense");
    const replies = applies(form).map(({ reply }) => reply);
    assert.equal(replies.length, dense.length);
    for (const [step, { request, reply }] of dense.entries()) {
      const logits = unpack(Float32Array, request.logits.data);
      const columns = Number(request.logits.shape[1]);
      if (form === "sparse") applyPatchInPlace(replies[step].sparse, logits, columns);
      else applyEditsInPlace(replies[step].edits, "PENALTY_PROFILE_SGLANG", logits, columns);
      assert.deepEqual(bytesOf(logits), reply.dense.logits.data);
    }
  });

for (const profile of ["SGLANG", "SGLANG_FUSED", "VLLM", "HF"])
  test(`edits of the profile ${profile} come to the bits of dense`, () => {
    const [{ request, reply }, { reply: recipe }] = applies(`profile_${profile.toLowerCase()}`);
    const logits = unpack(Float32Array, request.logits.data);
    applyEditsInPlace(recipe.edits, `PENALTY_PROFILE_${profile}`, logits, Number(request.logits.shape[1]));
    assert.deepEqual(bytesOf(logits), reply.dense.logits.data);
  });
