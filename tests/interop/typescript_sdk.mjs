// The official TypeScript clients under one set of names.

import assert from "node:assert/strict";

import { url } from "./steps.mjs";

const info = { name: "ringway-interop", version: "0.0.0" };

/** What differs between the SDK's generations, and the bridge `mcp-remote` before the first. */
export async function load(generation, mode) {
  const bridged = generation === "mcp-remote";
  if (generation === "v1" || bridged) {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const types = await import("@modelcontextprotocol/sdk/types.js");
    const notifications = {
      "notifications/tools/list_changed": types.ToolListChangedNotificationSchema,
      "notifications/resources/list_changed": types.ResourceListChangedNotificationSchema,
      "notifications/prompts/list_changed": types.PromptListChangedNotificationSchema,
      "notifications/resources/updated": types.ResourceUpdatedNotificationSchema,
      "notifications/message": types.LoggingMessageNotificationSchema,
    };
    const requests = {
      "sampling/createMessage": types.CreateMessageRequestSchema,
      "elicitation/create": types.ElicitRequestSchema,
      "roots/list": types.ListRootsRequestSchema,
    };
    const { BridgeTransport } = bridged ? await import("./mcp_remote.mjs") : {};
    return {
      newTransport: (fetch, at = url) =>
        bridged ? new BridgeTransport(mode, at) : new StreamableHTTPClientTransport(at, { fetch }),
      newClient: (capabilities = {}) => new Client(info, { capabilities }),
      call: (client, params, options) => client.callTool(params, undefined, options),
      request: (client, request) => client.request(request, types.EmptyResultSchema),
      listen: (client, method, handler) => client.setNotificationHandler(notifications[method], handler),
      answer: (client, method, handler) => client.setRequestHandler(requests[method], handler),
      statusOf: (error) => error.code,
    };
  }
  assert.equal(generation, "v2");
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  // The shape of a result schema that takes whatever comes (Standard Schema v1).
  const anything = { "~standard": { version: 1, vendor: "ringway", validate: (value) => ({ value }) } };
  return {
    newTransport: (fetch, at = url) => new StreamableHTTPClientTransport(at, { fetch }),
    newClient: (capabilities = {}) => new Client(info, { capabilities, versionNegotiation: { mode } }),
    call: (client, params, options) => client.callTool(params, options),
    request: (client, request) => client.request(request, anything),
    listen: (client, method, handler) => client.setNotificationHandler(method, handler),
    answer: (client, method, handler) => client.setRequestHandler(method, handler),
    statusOf: (error) => error.status,
  };
}
