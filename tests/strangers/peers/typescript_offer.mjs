// What the servers on the official TypeScript SDK offer, whatever its version, and how they are reached by HTTP.
import { createServer } from "node:http";
import { sdk } from "./typescript_sdk.mjs";

const { z } = sdk("zod");

export const ABOUT = { name: "typescript", version: "1.0", title: "A stranger" };
export const CHOICE = {
    type: "object",
    properties: { colour: { type: "string" }, amount: { type: "integer" } },
    required: ["colour", "amount"],
};

const texts = new Map([["first", "one"], ["second", "two"]]);
const ends = new Map();
const subscriptions = new Map();

export const words = (text) => ({ content: [{ type: "text", text }] });
export const chosen = ({ action, content: form }) => words(form ? `${action} ${form.colour} ${form.amount}` : action);
export const said = ({ model, content }) => words(`${model}: ${content.text}`);
export const question = (text) => ({
    messages: [{ role: "user", content: { type: "text", text } }],
    maxTokens: 50,
    systemPrompt: "Be brief.",
});

// Note what the client of this server subscribes to, until it goes.
export function subscribing(server) {
    const uris = new Set();
    server.server.onclose = () => subscriptions.delete(server);
    return {
        subscribe({ params }) {
            uris.add(params.uri);
            subscriptions.set(server, uris);
            return {};
        },
        unsubscribe({ params }) {
            uris.delete(params.uri);
            return {};
        },
    };
}

async function tellSubscribers(uri) {
    for (const [server, uris] of subscriptions) {
        if (uris.has(uri)) await server.server.sendResourceUpdated({ uri });
    }
}

function end(ticket) {
    if (!ends.has(ticket)) ends.set(ticket, Promise.withResolvers());
    return ends.get(ticket);
}

// Register all that needs nothing of an SDK's own. `reach(context)` gives `{ notify, signal, token, log }` of a request;
// `updated(uri)` is called besides for those who have not subscribed in a session.
export function offer(server, ResourceTemplate, reach, updated = () => {}) {
    const tool = (name, input, run, more) =>
        server.registerTool(name, { description: name, inputSchema: z.object(input), ...more }, run);
    tool("add", { a: z.number(), b: z.number() }, ({ a, b }) => {
        const structuredContent = { total: a + b, terms: [a, b] };
        return { ...words(JSON.stringify(structuredContent)), structuredContent };
    }, { outputSchema: z.object({ total: z.number(), terms: z.array(z.number()) }) });
    tool("echo", { text: z.string() }, ({ text }) => words(text));
    tool("fail", {}, () => {
        throw new Error("There is no more of it.");
    });
    tool("count", { to: z.number() }, async ({ to }, context) => {
        for (let progress = 1; progress <= to; progress++) {
            await tell(reach(context), { progress, total: to, message: `at ${progress}` });
        }
        return words(`counted to ${to}`);
    });
    tool("mutter", {}, async (_, context) => {
        for (const level of ["debug", "warning"]) await reach(context).log(level, `a line of ${level}`, "mutter");
        return words("muttered");
    });
    tool("hang", { ticket: z.string() }, async ({ ticket }, context) => {
        const { promise, resolve } = Promise.withResolvers();
        reach(context).signal.addEventListener("abort", resolve);
        await tell(reach(context), { progress: 1 });
        await promise;
        end(ticket).resolve();
        return words("too late");
    });
    tool("ended", { ticket: z.string() }, async ({ ticket }) => {
        await end(ticket).promise;
        return words("ended");
    });
    tool("rewrite", { name: z.string(), value: z.string() }, async ({ name, value }) => {
        texts.set(name, value);
        await updated(`text://${name}`);
        await tellSubscribers(`text://${name}`);
        return words("rewritten");
    });
    const template = new ResourceTemplate("text://{name}", { list: undefined });
    server.registerResource("text", template, { mimeType: "text/plain" }, (uri, { name }) => ({
        contents: [{ uri: uri.href, mimeType: "text/plain", text: texts.get(name) }],
    }));
}

async function tell({ notify, token }, progress) {
    if (token === undefined) return;
    await notify({ method: "notifications/progress", params: { progressToken: token, ...progress } });
}

// Keeps the events of all streams in the order in which they came. The SDK's own example sorts them by a random part
// of their ids.
export class EventStore {
    #events = [];

    async storeEvent(streamId, message) {
        return `${this.#events.push({ streamId, message }) - 1}`;
    }

    async getStreamIdForEventId(eventId) {
        return this.#events[eventId]?.streamId;
    }

    async replayEventsAfter(lastEventId, { send }) {
        const { streamId } = this.#events[lastEventId];
        for (const [index, event] of this.#events.entries()) {
            if (index <= Number(lastEventId) || event.streamId !== streamId) continue;
            // A priming event has an id and nothing to say.
            if (Object.keys(event.message).length) await send(`${index}`, event.message);
        }
        return streamId;
    }
}

// One MCP session after the other, by their ids: `open(onId)` connects a server to a new transport.
export function sessions(open) {
    const transports = new Map();
    return async (request, response) => {
        const id = request.headers["mcp-session-id"];
        let transport = transports.get(id);
        if (id !== undefined && !transport) return response.writeHead(404).end();
        transport ??= await open((newId) => transports.set(newId, transport));
        await transport.handleRequest(request, response);
    };
}

// Serve each path by its handler, print the port, and end with stdin.
export function listen(paths) {
    const http = createServer(async (request, response) => {
        const handler = paths[new URL(request.url, "http://here").pathname];
        if (!handler) return response.writeHead(404).end();
        try {
            await handler(request, response);
        } catch (error) {
            console.error(error);
            response.destroy();
        }
    });
    http.listen(0, "127.0.0.1", () => process.stdout.write(`${http.address().port}\n`));
    process.stdin.on("end", () => process.exit(0)).resume();
}
