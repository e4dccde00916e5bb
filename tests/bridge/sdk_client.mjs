// `sdk_client.mjs 1|2`: a client on the official TypeScript SDK before or from 2.0 on, which visits every server behind a
// gateway. It does what sdk_client.py does and tells it in the same words; what it should have seen is said by sdk.py.
import { text as allOf } from "node:stream/consumers";

const { connect } = await import(`../strangers/peers/typescript_client${process.argv[2]}.mjs`);

const CHANGED = "notifications/tools/list_changed";
const UPDATED = "notifications/resources/updated";
const LATE = /^Received a progress notification for an unknown token/;
const DEADLINE = 20_000;
const LONGEST_STAY = 100_000;

class Peer {
    questions = [];
    noise = [];
    logs = [];
    arrived = [];
    #changes = [];
    #stirred = Promise.withResolvers();

    static async at({ place, over, mode }) {
        const peer = new Peer();
        peer.client = await connect(place, {
            transport: over,
            mode,
            answers: {
                elicitation: (params) => peer.#elicitation(params),
                sampling: (params) => peer.#sampling(params),
                roots: () => ({ roots: [] }),
            },
            tap: ({ method, params }) => method === "notifications/progress" && peer.arrived.push(params),
            hear: (notification) => peer.#hear(notification),
            // The SDK puts off what it does with a notice, but not with a result: of progress that comes in one piece with
            // the result it tells its caller nothing, but complains of it. So what arrived is what counts.
            complain: (error) => LATE.test(error.message) || peer.noise.push(String(error)),
        });
        return peer;
    }

    #hear({ method, params }) {
        if (method === "notifications/message") this.logs.push(params);
        else this.#changes.push({ method, uri: params?.uri });
        this.#stirred.resolve();
    }

    async until(isSo) {
        while (!isSo()) {
            this.#stirred = Promise.withResolvers();
            await this.#stirred.promise;
        }
    }

    // How often it was told of a change.
    times(method, uri) {
        return this.#changes.filter((change) => change.method === method && change.uri === uri).length;
    }

    // How often it was told of a resource of this server, whichever it was.
    updatesOf(name) {
        return this.#changes.filter(({ uri }) => uri?.startsWith(`${name}+`)).length;
    }

    #elicitation(params) {
        this.questions.push(params);
        const fields = Object.entries(params.requestedSchema.properties);
        return { action: "accept", content: Object.fromEntries(fields.map(([name, field]) => [name, filled(field)])) };
    }

    #sampling(params) {
        this.questions.push(params);
        const [{ content }] = params.messages;
        const asked = Array.isArray(content) ? content[0].text : content.text;
        const words = { type: "text", text: `${asked} Indeed.` };
        return { role: "assistant", content: words, model: "m1", stopReason: "endTurn" };
    }
}

function filled(field) {
    if (field.type === "boolean") return true;
    if (field.type === "array") return field.items.enum;
    if (field.type === "integer") return 3;
    return field.enum?.[0] ?? field.oneOf?.[0].const ?? "green";
}

// What the client sees of one server; `own` are our servers, the others are an SDK's.
async function visit(peer, { name, own, asks }, ticket) {
    const call = (tool, args, options) => peer.client.call(`${name}__${tool}`, args, options);
    const text = async (tool, args, options) => (await call(tool, args, options)).content[0].text;
    const read = async (uri) => {
        const { contents: [contents] } = await peer.client.read(uri);
        return [contents.uri, contents.text];
    };
    const saw = { echo: await text("echo", { text: "hello" }) };
    const result = await (own ? call("everything", {}) : call("add", { a: 1, b: 2 }));
    saw.structured = result.structuredContent ?? null;
    saw.last = result.content.at(-1);
    peer.arrived.length = 0;
    const seen = [];
    saw.count = await text("count", own ? {} : { to: 20 }, { onprogress: (progress) => seen.push(progress) });
    saw.progress = peer.arrived.map(({ progress, total, message }) => [progress, total, message ?? null]);
    saw.seen = seen.map(({ progress, total, message }) => [progress, total, message ?? null]);
    peer.logs.length = 0;
    await text("mutter", {}, { logLevel: "warning" });
    await peer.until(() => peer.logs.length > 0);
    saw.log = peer.logs.map(({ level, data }) => [level, data]);
    const work = { [own ? "text" : "ticket"]: ticket };
    const abort = new AbortController();
    const { promise: begun, resolve } = Promise.withResolvers();
    const hanging = call("hang", work, { signal: abort.signal, onprogress: resolve }).catch(() => "cancelled");
    await begun;
    abort.abort("enough");
    saw.cancelled = await text("ended", work);
    await hanging;
    peer.questions.length = 0;
    if (asks) saw.form = await text("choose", own ? {} : { message: "accept" }).catch(wire);
    saw.model = await text("ponder", own ? {} : { question: "Why?" });
    saw.asked = peer.questions.length;
    saw.resource = await read(own ? `${name}+note://one` : `${name}+text://second`);
    const uri = own ? `${name}+note://one` : `${name}+text://${ticket}`;
    const rewrite = (which, value) => text("rewrite", { name: which, value });
    const stop = await peer.client.watch({ uris: [uri] });
    if (own) {
        await text("touch", {});
    } else {
        await rewrite("unheard", "whatever"); // which is nobody's business here
        await rewrite(ticket, "new");
    }
    await peer.until(() => peer.times(UPDATED, uri) > 0);
    saw.updated = true;
    saw.rewritten = await read(uri);
    await stop();
    await (own ? text("touch", {}) : rewrite(ticket, "newer"));
    return saw;
}

function wire({ code, message }) {
    return { code, message };
}

async function toolNames({ client }) {
    const names = [];
    let cursor;
    do {
        const page = await client.page(cursor);
        names.push(...page.tools.map((tool) => tool.name));
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    return names;
}

async function stay(peer, { servers, ticket }) {
    const report = { version: peer.client.version };
    const stop = await peer.client.watch({ tools: true });
    // A gateway that was started just now tells when its servers are there.
    await listWith(peer, servers.map(({ name }) => `${name}__echo`));
    // Of changes of one kind it tells once a second at most: here that passes with the visits.
    const times = peer.times(CHANGED);
    for (const { name, own, trick } of servers) {
        await peer.client.call(`${name}__${own ? "grow" : "learn"}`, { [own ? "text" : "name"]: trick });
    }
    for (const server of servers) {
        const seen = await inTime(DEADLINE, visit(peer, server, ticket)).catch((error) => ({ failed: told(error) }));
        report[server.name] = seen;
    }
    await inTime(DEADLINE, peer.until(() => peer.times(CHANGED) > times));
    const listed = await listWith(peer, servers.map(({ name, trick }) => `${name}__${trick}`));
    await stop();
    for (const { name, trick } of servers) {
        const own = listed.filter((tool) => tool.startsWith(`${name}__`)).map((tool) => tool.slice(name.length + 2));
        Object.assign(report[name], { learned: trick, updates: peer.updatesOf(name), listed: own });
    }
    return { ...report, noise: [...peer.noise] }; // What it says of its own leaving is not of interest.
}

// The names of all tools once these are among them, or when nothing more is told.
async function listWith(peer, wanted) {
    for (;;) {
        const times = peer.times(CHANGED);
        const found = await toolNames(peer);
        if (wanted.every((name) => found.includes(name))) return found;
        const more = peer.until(() => peer.times(CHANGED) > times).then(() => true);
        if (!(await inTime(DEADLINE, more).catch(() => false))) return found;
    }
}

function inTime(deadline, work) {
    const { promise, reject } = Promise.withResolvers();
    const timer = setTimeout(() => reject(new Error("too late")), deadline);
    return Promise.race([work, promise]).finally(() => clearTimeout(timer));
}

function told(error) {
    return error?.stack ?? String(error);
}

async function report(work) {
    const peer = await Peer.at(work);
    try {
        return await stay(peer, work);
    } finally {
        await peer.client.close();
    }
}

const reports = [];
for (const work of JSON.parse(await allOf(process.stdin))) {
    reports.push(await inTime(LONGEST_STAY, report(work)).catch((error) => ({ failed: told(error) })));
}
process.stdout.write(`${JSON.stringify(reports)}\n`, () => process.exit(0));
