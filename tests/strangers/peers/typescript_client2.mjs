// The official TypeScript SDK from 2.0 on as a client, in the era that it is told.
import { sdk } from "./typescript_sdk.mjs";

const { Client, SSEClientTransport, StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/client");

export async function connect(url, { transport, mode, reconnectionOptions, answers, hear, tap }) {
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
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    const wire = new Transport(new URL(url), { reconnectionOptions });
    await client.connect(wire);
    const deliver = wire.onmessage;
    wire.onmessage = (message, extra) => (tap(message), deliver(message, extra));
    const isModern = client.getProtocolEra() === "modern";
    return {
        version: client.getNegotiatedProtocolVersion(),
        info: client.getServerVersion(),
        // Without a cursor it reads all pages by itself; an empty one would be a cursor.
        page: (cursor) => client.listTools(cursor === undefined ? undefined : { cursor }, { cacheMode: "refresh" }),
        call: (name, args, options) => client.callTool({ name, arguments: args }, options),
        read: (uri) => client.readResource({ uri }),
        prompt: (name, args) => client.getPrompt({ name, arguments: args }),
        async watch(uri) {
            if (isModern) {
                const subscription = await client.listen({ resourceSubscriptions: [uri], toolsListChanged: true });
                return () => subscription.close();
            }
            await client.subscribeResource({ uri });
            return () => client.unsubscribeResource({ uri });
        },
        async close() {
            await wire.terminateSession?.();
            await client.close();
        },
    };
}
