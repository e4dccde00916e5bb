// The official TypeScript SDK before 2.0 as a client, over Streamable HTTP or HTTP+SSE.
import { sdk } from "./typescript_sdk.mjs";

const { Client } = sdk("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport } = sdk("@modelcontextprotocol/sdk/client/sse.js");
const { StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/sdk/client/streamableHttp.js");
const types = sdk("@modelcontextprotocol/sdk/types.js");

export async function connect(url, { transport, reconnectionOptions, answers, hear, tap }) {
    const client = new Client(
        { name: "typescript1", version: "1" },
        { capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} } },
    );
    client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => answers.elicitation(params));
    client.setRequestHandler(types.CreateMessageRequestSchema, ({ params }) => answers.sampling(params));
    client.setRequestHandler(types.ListRootsRequestSchema, () => answers.roots());
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, hear);
    client.setNotificationHandler(types.ToolListChangedNotificationSchema, hear);
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    const wire = new Transport(new URL(url), { reconnectionOptions });
    // It keeps the revision to itself, and tells its transport alone.
    let version;
    const tell = wire.setProtocolVersion.bind(wire);
    wire.setProtocolVersion = (agreed) => tell((version = agreed));
    await client.connect(wire);
    const deliver = wire.onmessage;
    wire.onmessage = (message, extra) => (tap(message), deliver(message, extra));
    return {
        version,
        info: client.getServerVersion(),
        page: (cursor) => client.listTools({ cursor }),
        call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
        read: (uri) => client.readResource({ uri }),
        prompt: (name, args) => client.getPrompt({ name, arguments: args }),
        async watch(uri) {
            await client.subscribeResource({ uri });
            return () => client.unsubscribeResource({ uri });
        },
        async close() {
            await wire.terminateSession?.();
            await client.close();
        },
    };
}
