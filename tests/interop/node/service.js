// The service as its .proto describes it: no generated code.
import { randomBytes, randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

/** The service's methods by name, each with functions that serialise and parse. */
export function load(options) {
  const includeDirs = [fileURLToPath(new URL("../../../proto", import.meta.url))];
  return protoLoader.loadSync("logitd/v1/service.proto", { includeDirs, ...options })["logitd.v1.LogitProcessorService"];
}

const Client = grpc.makeClientConstructor(load({ longs: Number, enums: String, defaults: true }), "Service");

/** A client; `target` is unix:PATH or HOST:PORT. */
export const connect = (target) => new Client(target, grpc.credentials.createInsecure());

/** A batch with its stream of steps: `rpc` is Apply or BeamStep. */
export class Batch {
  static async open(client, rpc, request) {
    const batchId = `node-${randomUUID()}`;
    const metadata = new grpc.Metadata();
    metadata.set("x-logitd-route", batchId); // a proxy keeps a batch on its server by this
    const { batch } = await call(client, "CreateBatch", { ...request, batchId, createKey: randomBytes(16) }, metadata);
    return new Batch(client, metadata, batch, client[rpc](metadata));
  }

  constructor(client, metadata, description, stream) {
    Object.assign(this, { client, metadata, description, stream });
    this.replies = stream[Symbol.asyncIterator]();
  }

  /** Sends a step and reads its reply. When the reply is lost, send the same message again on a new stream: the server
   * knows the requestId and counts nothing twice. */
  async step(request, isMutation = true) {
    const { batchId, uid, revision } = this.description;
    const target = { batchId, uid, expectedRevision: revision };
    if (isMutation) target.requestId = randomBytes(16);
    this.stream.write({ ...request, target });
    const { value: reply } = await this.replies.next();
    this.description.revision = reply.revision;
    return reply;
  }

  async delete() {
    this.stream.end();
    const { batchId, uid } = this.description;
    await call(this.client, "DeleteBatch", { batchId, uid }, this.metadata);
  }
}

function call(client, rpc, request, metadata) {
  return new Promise((resolve, reject) => {
    client[rpc](request, metadata, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}
