// The official TypeScript SDK before 2.0 as a client, over Streamable HTTP, HTTP+SSE or stdio.
import { sdk } from "./typescript_sdk.mjs";

const { Client } = sdk("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport } = sdk("@modelcontextprotocol/sdk/client/sse.js");
const { StdioClientTransport } = sdk("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/sdk/client/streamableHttp.js");
const types = sdk("@modelcontextprotocol/sdk/types.js");

// The place is a URL, or over stdio a command line and its environment.
function newTransport(place, transport, reconnectionOptions) {
    if (transport === "stdio") {
        const [[command, ...args], env] = place;
        return new StdioClientTransport({ command, args, env });
    }
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    return new Transport(new URL(place), { reconnectionOptions });
}

export async function connect(place, { transport, reconnectionOptions, answers, hear, tap, complain }) {
    const client = new Client(
        { name: "typescript1", version: "1" },
        { capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} } },
    );
    client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => answers.elicitation(params));
    client.setRequestHandler(types.CreateMessageRequestSchema, ({ params }) => answers.sampling(params));
    client.setRequestHandler(types.ListRootsRequestSchema, () => answers.roots());
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, hear);
    client.setNotificationHandler(types.ToolListChangedNotificationSchema, hear);
    client.setNotificationHandler(types.LoggingMessageNotificationSchema, hear);
    client.onerror = complain;
    const wire = newTransport(place, transport, reconnectionOptions);
    // It keeps the revision to itself, and tells its transport alone.
    let version;
    const tell = wire.setProtocolVersion?.bind(wire);
    wire.setProtocolVersion = (agreed) => {
        version = agreed;
        tell?.(agreed);
    };
    await client.connect(wire);
    const deliver = wire.onmessage;
    wire.onmessage = (message, extra) => (tap(message), deliver(message, extra));
    return {
        version,
        info: client.getServerVersion(),
        page: (cursor) => client.listTools({ cursor }),
        async call(name, args, { logLevel, ...options } = {}) {
            if (logLevel !== undefined) await client.setLoggingLevel(logLevel);
            return await client.callTool({ name, arguments: args }, undefined, options);
        },
        read: (uri) => client.readResource({ uri }),
        prompt: (name, args) => client.getPrompt({ name, arguments: args }),
        // Changes of lists are told whether or not they are wanted.
        async watch({ uris = [] }) {
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
