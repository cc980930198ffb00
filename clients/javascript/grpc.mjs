// The stream of player.mjs over gRPC, in Node.js. It needs the folder `proto` beside this file.

import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

import { Refusal } from "./player.mjs";

const { EnvironmentService } = grpc.loadPackageDefinition(
  protoLoader.loadSync("rollcast/v1/environment.proto", {
    includeDirs: [fileURLToPath(new URL("proto", import.meta.url))],
    keepCase: true,
    longs: String,
    defaults: true,
  }),
).rollcast.v1;
// Detects a lost server after 20 s.
const OPTIONS = { "grpc.keepalive_time_ms": 10_000, "grpc.keepalive_timeout_ms": 10_000 };

export function open(address, token, rootCertificates) {
  const { createSsl, createInsecure } = grpc.credentials;
  const stub = new EnvironmentService(address, rootCertificates ? createSsl(rootCertificates) : createInsecure(), OPTIONS);
  const metadata = new grpc.Metadata();
  if (token) metadata.set("authorization", `Bearer ${token}`);
  const { path, requestSerialize, responseDeserialize } = EnvironmentService.service.Play;
  const call = stub.makeBidiStreamRequest(path, (message) => message, responseDeserialize, metadata);
  return {
    encode: requestSerialize,
    write: (message) => call.write(message),
    end: () => call.end(),
    fail: (error) => call.destroy(error),
    close: () => {
      call.cancel();
      stub.close();
    },
    async *[Symbol.asyncIterator]() {
      try {
        yield* call;
      } catch (error) {
        throw error.code in grpc.status ? new Refusal(grpc.status[error.code], error.details) : error;
      }
    },
  };
}
