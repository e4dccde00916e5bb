// The official TypeScript SDK from 2.0 on as a client, in the era that it is told.
import { sdk } from "./typescript_sdk.mjs";

const { Client, SSEClientTransport, StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/client");
const { LOG_LEVEL_META_KEY } = sdk("@modelcontextprotocol/client");
const { StdioClientTransport } = sdk("@modelcontextprotocol/client/stdio");

// The place is a URL, or over stdio a command line and its environment.
function newTransport(place, transport, reconnectionOptions) {
    if (transport === "stdio") {
        const [[command, ...args], env] = place;
        return new StdioClientTransport({ command, args, env });
    }
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    return new Transport(new URL(place), { reconnectionOptions });
}

export async function connect(place, { transport, mode, reconnectionOptions, answers, hear, tap, complain }) {
    const client = new Client(
        { name: "typescript2", version: "2" },
        {
            capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
            versionNegotiation: { mode: mode === "modern" ? { pin: "2026-07-28" } : mode },
        },
    );
    client.setRequestHandler("elicitation/create", ({ params }) => answers.elicitation(params));
    client.setRequestHandler("sampling/createMessage", ({ params }) => answers.sampling(params));
    client.setRequestHandler("roots/list", () => answers.roots());
    client.setNotificationHandler("notifications/resources/updated", hear);
    client.setNotificationHandler("notifications/tools/list_changed", hear);
    client.setNotificationHandler("notifications/message", hear);
    client.onerror = complain;
    const wire = newTransport(place, transport, reconnectionOptions);
    await client.connect(wire);
    const deliver = wire.onmessage;
    wire.onmessage = (message, extra) => (tap(message), deliver(message, extra));
    const isModern = client.getProtocolEra() === "modern";
    return {
        version: client.getNegotiatedProtocolVersion(),
        info: client.getServerVersion(),
        // Without a cursor it reads all pages by itself; an empty one would be a cursor.
        page: (cursor) => client.listTools(cursor === undefined ? undefined : { cursor }, { cacheMode: "refresh" }),
        async call(name, args, { logLevel, ...options } = {}) {
            const asked = { name, arguments: args };
            if (logLevel !== undefined && isModern) asked._meta = { [LOG_LEVEL_META_KEY]: logLevel };
            else if (logLevel !== undefined) await client.setLoggingLevel(logLevel);
            return await client.callTool(asked, options);
        },
        read: (uri) => client.readResource({ uri }),
        prompt: (name, args) => client.getPrompt({ name, arguments: args }),
        // In the older era changes of lists are told whether or not they are wanted.
        async watch({ uris = [], tools = false }) {
            if (isModern) {
                const subscription = await client.listen({ resourceSubscriptions: uris, toolsListChanged: tools });
                return () => subscription.close();
            }
            for (const uri of uris) await client.subscribeResource({ uri });
            return async () => {
                for (const uri of uris) await client.unsubscribeResource({ uri });
            };
        },
        async close() {
            await wire.terminateSession?.();
            await client.close();
        },
    };
}
