// A server on the official TypeScript SDK from 2.0 on: both eras without sessions at /mcp, with sessions at /session.
import { randomUUID } from "node:crypto";
import { sdk } from "./typescript_sdk.mjs";
import { ABOUT, CHOICE, EventStore, chosen, listen, offer, question } from "./typescript_offer.mjs";
import { said, sessions, subscribing, words } from "./typescript_offer.mjs";

const { McpServer, ResourceTemplate, createMcpHandler } = sdk("@modelcontextprotocol/server");
const { inputRequired, inputResponse } = sdk("@modelcontextprotocol/server");
const { NodeStreamableHTTPServerTransport, toNodeHandler } = sdk("@modelcontextprotocol/node");
const { z } = sdk("zod");

const learned = new Set();

function newServer() {
    const capabilities = { resources: { subscribe: true }, tools: { listChanged: true } };
    const server = new McpServer(ABOUT, { capabilities });
    const { subscribe, unsubscribe } = subscribing(server);
    server.server.setRequestHandler("resources/subscribe", subscribe);
    server.server.setRequestHandler("resources/unsubscribe", unsubscribe);
    const reach = ({ mcpReq: { notify, signal, _meta } }) => ({ notify, signal, token: _meta?.progressToken });
    offer(server, ResourceTemplate, reach, (uri) => handler.notify.resourceUpdated(uri));
    // Written once: in the older era the SDK asks the client in the middle of the call, in the newer one it answers
    // with the question and the call comes again.
    server.registerTool("choose", { inputSchema: z.object({ message: z.string() }) }, ({ message }, { mcpReq }) => {
        const answer = inputResponse(mcpReq.inputResponses, "form");
        if (answer.kind === "elicit") return chosen(answer);
        return inputRequired({ inputRequests: { form: inputRequired.elicit({ message, requestedSchema: CHOICE }) } });
    });
    server.registerTool("ponder", { inputSchema: z.object({ text: z.string() }) }, ({ text }, { mcpReq }) => {
        const answer = inputResponse(mcpReq.inputResponses, "model");
        if (answer.kind === "sampling") return said(answer.result);
        return inputRequired({ inputRequests: { model: inputRequired.createMessage(question(text)) } });
    });
    const learn = (name) => server.registerTool(name, {}, () => words(`${name} was learned`));
    server.registerTool("learn", { inputSchema: z.object({ name: z.string() }) }, ({ name }) => {
        learned.add(name);
        learn(name);
        handler.notify.toolsChanged();
        return words("learned");
    });
    for (const name of learned) learn(name);
    return server;
}

const handler = createMcpHandler(newServer);

const withSessions = sessions(async (onsessioninitialized) => {
    const transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized,
        eventStore: new EventStore(),
        retryInterval: 50,
    });
    await newServer().connect(transport);
    return transport;
});

listen({ "/mcp": toNodeHandler(handler), "/session": withSessions });
