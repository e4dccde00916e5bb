// A server on the official TypeScript SDK from 2.0 on: both eras without sessions at /mcp, with sessions at /session; or
// with the argument "stdio" both eras over its stdin and stdout.
import { randomUUID } from "node:crypto";
import { sdk } from "./typescript_sdk.mjs";
import { ABOUT, CHOICE, EventStore, chosen, listen, offer, question } from "./typescript_offer.mjs";
import { said, sessions, subscribing, words } from "./typescript_offer.mjs";

const { McpServer, ResourceTemplate, createMcpHandler } = sdk("@modelcontextprotocol/server");
const { inputRequired, inputResponse } = sdk("@modelcontextprotocol/server");
const { NodeStreamableHTTPServerTransport, toNodeHandler } = sdk("@modelcontextprotocol/node");
const { serveStdio } = sdk("@modelcontextprotocol/server/stdio");
const { z } = sdk("zod");

const learned = new Set();

// `notify` tells those who listen in the newer era, wherever they are connected.
function newServer(notify) {
    const capabilities = { resources: { subscribe: true }, tools: { listChanged: true }, logging: {} };
    const server = new McpServer(ABOUT, { capabilities });
    const { subscribe, unsubscribe } = subscribing(server);
    server.server.setRequestHandler("resources/subscribe", subscribe);
    server.server.setRequestHandler("resources/unsubscribe", unsubscribe);
    const reach = ({ mcpReq: { notify, signal, log, _meta } }) => {
        return { notify, signal, token: _meta?.progressToken, log };
    };
    offer(server, ResourceTemplate, reach, (uri) => notify.resourceUpdated(uri));
    // Written once: in the older era the SDK asks the client in the middle of the call, in the newer one it answers
    // with the question and the call comes again.
    server.registerTool("choose", { inputSchema: z.object({ message: z.string() }) }, ({ message }, { mcpReq }) => {
        const answer = inputResponse(mcpReq.inputResponses, "form");
        if (answer.kind === "elicit") return chosen(answer);
        return inputRequired({ inputRequests: { form: inputRequired.elicit({ message, requestedSchema: CHOICE }) } });
    });
    server.registerTool("ponder", { inputSchema: z.object({ question: z.string() }) }, (asked, { mcpReq }) => {
        const answer = inputResponse(mcpReq.inputResponses, "model");
        if (answer.kind === "sampling") return said(answer.result);
        return inputRequired({ inputRequests: { model: inputRequired.createMessage(question(asked.question)) } });
    });
    const learn = (name) => server.registerTool(name, {}, () => words(`${name} was learned`));
    server.registerTool("learn", { inputSchema: z.object({ name: z.string() }) }, ({ name }) => {
        learned.add(name);
        learn(name);
        notify.toolsChanged();
        return words("learned");
    });
    for (const name of learned) learn(name);
    return server;
}

const handler = createMcpHandler(() => newServer(handler.notify));

const withSessions = sessions(async (onsessioninitialized) => {
    const transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized,
        eventStore: new EventStore(),
        retryInterval: 50,
    });
    await newServer(handler.notify).connect(transport);
    return transport;
});

// Over stdio the server's own notices find those who listen; and the SDK tells of a new tool by itself.
function overStdio({ era }) {
    const resourceUpdated = (uri) => era === "modern" && server.server.sendResourceUpdated({ uri });
    const server = newServer({ resourceUpdated, toolsChanged() {} });
    return server;
}

if (process.argv[2] === "stdio") {
    serveStdio(overStdio);
} else {
    listen({ "/mcp": toNodeHandler(handler), "/session": withSessions });
}
