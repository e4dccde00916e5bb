// A server on the official TypeScript SDK before 2.0: with sessions at /mcp, without at /stateless, HTTP+SSE at /sse; or
// with the argument "stdio" over its stdin and stdout.
import { randomUUID } from "node:crypto";
import { sdk } from "./typescript_sdk.mjs";
import { ABOUT, CHOICE, EventStore, chosen, listen, offer, question } from "./typescript_offer.mjs";
import { said, sessions, subscribing, words } from "./typescript_offer.mjs";

const { McpServer, ResourceTemplate } = sdk("@modelcontextprotocol/sdk/server/mcp.js");
const { SSEServerTransport } = sdk("@modelcontextprotocol/sdk/server/sse.js");
const { StdioServerTransport } = sdk("@modelcontextprotocol/sdk/server/stdio.js");
const { StreamableHTTPServerTransport } = sdk("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { SubscribeRequestSchema, UnsubscribeRequestSchema } = sdk("@modelcontextprotocol/sdk/types.js");
const { z } = sdk("zod");

function newServer() {
    const capabilities = { resources: { subscribe: true }, tools: { listChanged: true }, logging: {} };
    const server = new McpServer(ABOUT, { capabilities });
    const { subscribe, unsubscribe } = subscribing(server);
    server.server.setRequestHandler(SubscribeRequestSchema, subscribe);
    server.server.setRequestHandler(UnsubscribeRequestSchema, unsubscribe);
    offer(server, ResourceTemplate, ({ sendNotification, signal, sessionId, _meta }) => {
        // Its own `sendLoggingMessage` would go out on the stream that belongs to no call.
        const log = async (level, data, logger) => {
            if (server.server.isMessageIgnored(level, sessionId)) return;
            await sendNotification({ method: "notifications/message", params: { level, data, logger } });
        };
        return { notify: sendNotification, signal, token: _meta?.progressToken, log };
    });
    // With `relatedRequestId` a question goes out on the stream of the call that asks it.
    const inside = ({ requestId }) => ({ relatedRequestId: requestId });
    server.registerTool("choose", { inputSchema: { message: z.string() } }, async ({ message }, extra) =>
        chosen(await server.server.elicitInput({ message, requestedSchema: CHOICE }, inside(extra))),
    );
    server.registerTool("ponder", { inputSchema: { question: z.string() } }, async (asked, extra) =>
        said(await server.server.createMessage(question(asked.question), inside(extra))),
    );
    server.registerTool("learn", { inputSchema: { name: z.string() } }, ({ name }) => {
        server.registerTool(name, {}, () => words(`${name} was learned`));
        return words("learned");
    });
    return server;
}

const withSessions = sessions(async (onsessioninitialized) => {
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized,
        eventStore: new EventStore(),
        retryInterval: 50,
    });
    await newServer().connect(transport);
    return transport;
});

async function withoutSessions(request, response) {
    if (request.method !== "POST") return response.writeHead(405).end();
    const server = newServer();
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    response.on("close", () => server.close());
    await server.connect(transport);
    await transport.handleRequest(request, response);
}

const streams = new Map();

async function openStream(request, response) {
    if (request.method !== "GET") return response.writeHead(405).end();
    const transport = new SSEServerTransport("/messages", response);
    streams.set(transport.sessionId, transport);
    response.on("close", () => streams.delete(transport.sessionId));
    await newServer().connect(transport);
}

async function postMessage(request, response) {
    const stream = streams.get(new URL(request.url, "http://here").searchParams.get("sessionId"));
    await (stream ? stream.handlePostMessage(request, response) : response.writeHead(404).end());
}

if (process.argv[2] === "stdio") {
    await newServer().connect(new StdioServerTransport());
} else {
    listen({ "/mcp": withSessions, "/stateless": withoutSessions, "/sse": openStream, "/messages": postMessage });
}
