// The official client for tasks, on the official TypeScript SDK: `tasks_typescript.mjs URL`. It says what it saw.
import { pathToFileURL } from "node:url";

import { sdk } from "./typescript_sdk.mjs";

const { Client, StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/client");
// It has no entry for `require`, so that its file is named.
const entry = `${process.cwd()}/node_modules/@modelcontextprotocol/ext-tasks/dist/client/index.js`;
const { createTaskSessionFromClient, resultFromTaskOutcome } = await import(pathToFileURL(entry));

const [url] = process.argv.slice(2);
const saw = { asked: [], states: [], names: [] };
const clientInfo = { name: "typescript-tasks", version: "1" };
const clientCapabilities = { elicitation: { form: {} }, extensions: { "io.modelcontextprotocol/tasks": {} } };
const protocolVersion = "2026-07-28";

// What the package leaves to its host: to send a request as it is, under the headers that it must have.
async function rawDispatch(request, options) {
    const name = request.params.taskId ?? request.params.name;
    const headers = {
        "content-type": "application/json",
        accept: "application/json, text/event-stream",
        "mcp-protocol-version": protocolVersion,
        "mcp-method": request.method,
        "mcp-name": name,
    };
    saw.names.push([request.method, name]);
    const message = { jsonrpc: "2.0", id: saw.names.length, ...request };
    const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(message), signal: options?.signal });
    return await answer.json();
}

const client = new Client(clientInfo, {
    capabilities: clientCapabilities,
    versionNegotiation: { mode: { pin: protocolVersion } },
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const session = createTaskSessionFromClient(client, {
    endpointId: "gateway",
    rawDispatch,
    v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
    async onInputRequest({ params }) {
        saw.asked.push(params.message);
        return { action: "accept", content: { name: "Ada" } };
    },
});

async function settled(name, args = {}) {
    const execution = await session.callTool(name, args);
    const onEvent = (event) => event.type === "task" && saw.states.push(event.task.status);
    return { execution, ...(await execution.settle({ onEvent })) };
}

const { execution, outcome } = await settled("s__confirm_delete");
saw.kind = execution.kind;
saw.id = execution.handle?.taskId;
saw.result = resultFromTaskOutcome(outcome).content[0].text;
saw.failed = (await settled("s__protocol_error_job")).outcome.status;
saw.plain = (await session.callTool("s__greet", { name: "Ada" })).kind;
const endless = await session.callTool("s__dig", {});
await endless.cancel();
saw.cancelled = (await endless.settle()).outcome.status;
await session.close();
await client.close();
console.log(JSON.stringify(saw));
