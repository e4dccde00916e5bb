// `typescript_client.mjs SETTINGS`: all that a client on the official TypeScript SDK does with our server
// (servers/whole.py) over HTTP. Each scenario tells what the client saw; test_typescript_clients.py says what it should
// have seen. Prints `cut` when all connections through the proxy are to be cut, reads a line when they are, and prints
// the report at the end.
import { once } from "node:events";
import { createInterface } from "node:readline";

const settings = JSON.parse(process.argv[2]);
const { connect } = await import(`./typescript_client${settings.sdk}.mjs`);
const orders = createInterface({ input: process.stdin });

const DEADLINE = 15_000;
const UPDATED = "notifications/resources/updated";

async function cutAll() {
    const done = once(orders, "line");
    process.stdout.write("cut\n");
    await done;
}

class Peer {
    questions = [];
    arrived = [];
    complaints = [];
    #changes = [];
    #arrived = Promise.withResolvers();

    static async at(url) {
        const peer = new Peer();
        peer.client = await connect(url, {
            ...settings,
            // By default it waits a second before it comes back.
            reconnectionOptions: {
                initialReconnectionDelay: 100,
                maxReconnectionDelay: 1000,
                reconnectionDelayGrowFactor: 2,
                maxRetries: 5,
            },
            answers: {
                elicitation: (params) => peer.#elicitation(params),
                sampling: (params) => peer.#sampling(params),
                roots: () => ({ roots: [{ uri: "file:///tmp/here", name: "here" }, { uri: "file:///tmp/there" }] }),
            },
            // What arrives, before the SDK has made anything of it.
            tap: ({ method, params }) => method === "notifications/progress" && peer.arrived.push(params.progress),
            complain: (error) => peer.complaints.push(String(error)),
            hear(notification) {
                peer.#changes.push(notification);
                peer.#arrived.resolve();
            },
        });
        return peer;
    }

    async text(name, args, options) {
        const result = await this.client.call(name, args, options);
        if (result.isError) throw new Error(`${name} failed: ${result.content[0].text}`);
        return result.content[0].text;
    }

    async nextChange(method) {
        for (;;) {
            const index = this.#changes.findIndex((change) => change.method === method);
            if (index >= 0) return this.#changes.splice(0, index + 1).at(-1);
            this.#arrived = Promise.withResolvers();
            await this.#arrived.promise;
        }
    }

    // What a user would do, or a model say: the message of a question says which answer it wants.

    #elicitation(params) {
        this.questions.push(params);
        if (params.message === "decline" || params.message === "cancel") return { action: params.message };
        return { action: "accept", content: { colour: "green", amount: 3 } };
    }

    #sampling(params) {
        this.questions.push(params);
        const [{ content }] = params.messages;
        const asked = Array.isArray(content) ? content[0].text : content.text;
        const words = { type: "text", text: `${asked} Indeed.` };
        return { role: "assistant", content: words, model: "m1", stopReason: "endTurn" };
    }
}

const scenarios = {
    async acquaintance({ client }) {
        return { version: client.version, info: client.info };
    },

    async tools({ client }) {
        const names = [];
        let add, cursor;
        do {
            const page = await client.page(cursor);
            names.push(...page.tools.map((tool) => tool.name));
            add ??= page.tools.find((tool) => tool.name === "add");
            cursor = page.nextCursor;
        } while (cursor !== undefined);
        return { names, add };
    },

    async calls(peer) {
        const text = "ä \"quoted\" \\ \u2028 \x7f \u{1f30a} \n\r\t".repeat(2000);
        return {
            add: await peer.client.call("add", { a: 2, b: 40 }),
            same: (await peer.text("echo", { text })) === text,
            failed: await peer.client.call("fail", { secretly: false }),
            unknown: await refusal(peer.client.call("nobody", {})),
            prompt: await peer.client.prompt("letter", { to: "Ada" }),
        };
    },

    async at_once(peer) {
        const numbers = [...Array(50).keys()].map(String);
        const meeting = ["bridge", "tower"].map((place) => `${settings.name} ${place}`);
        const [first, second, ...rest] = await Promise.all([
            peer.text("meet", { place: meeting[0], other: meeting[1] }),
            peer.text("meet", { place: meeting[1], other: meeting[0] }),
            ...numbers.map((text) => peer.text("echo", { text })),
        ]);
        return { met: [first, second].every((text) => text.startsWith("met at")), same: `${rest}` === `${numbers}` };
    },

    async progress(peer) {
        return await counted(peer);
    },

    async unasked(peer) {
        const text = await peer.text("greet", {});
        const after = await peer.text("echo", { text: "still there" });
        return { text, after, arrived: peer.arrived, complaints: peer.complaints };
    },

    async cancellation(peer) {
        const ticket = `${settings.name} t1`;
        const abort = new AbortController();
        const { promise: atWork, resolve } = Promise.withResolvers();
        const call = refusal(peer.client.call("hang", { ticket }, { signal: abort.signal, onprogress: resolve }));
        await atWork;
        abort.abort("enough");
        // Only the server's own word counts: it waits there until the cancelled call has ended.
        return { server: await peer.text("ended", { ticket }), client: await call };
    },

    async elicitation(peer) {
        const answers = {};
        for (const message of ["accept", "decline", "cancel"]) {
            answers[message] = JSON.parse(await peer.text("choose", { message }));
        }
        return { answers, asked: peer.questions[0] };
    },

    async sampling(peer) {
        return { answer: JSON.parse(await peer.text("ponder", { question: "Who?" })), asked: peer.questions[0] };
    },

    async roots(peer) {
        return JSON.parse(await peer.text("places", {}));
    },

    async several_questions(peer) {
        const seen = [];
        const text = await peer.text("interview", {}, { onprogress: (progress) => seen.push(progress) });
        return { text, seen, arrived: peer.arrived };
    },

    async updates(peer) {
        const [mine, other] = ["mine", "other"].map((word) => `${settings.name}-${word}`);
        const stop = await peer.client.watch({ uris: [`text://${mine}`], tools: true });
        // The first is nobody's business here; if it were told of, it would come first.
        await rewrite(peer, other, "4");
        await rewrite(peer, mine, "3");
        const told = await peer.nextChange(UPDATED);
        const read = await peer.client.read(`text://${mine}`);
        await peer.client.call("learn", { name: `${settings.name}-juggling` });
        const learned = await peer.nextChange("notifications/tools/list_changed");
        await stop();
        return { mine: told.params.uri === `text://${mine}`, text: read.contents[0].text, learned: learned.method };
    },

    // The proxy resets the connection in the middle of the thousand.
    async cut_call() {
        const peer = await Peer.at(settings.proxied);
        const seen = await counted(peer);
        const after = await peer.text("echo", { text: "still there" });
        await peer.client.close();
        return { ...seen, after };
    },

    async cut_work(direct) {
        const ticket = `${settings.name} t2`;
        const peer = await Peer.at(settings.proxied);
        const abort = new AbortController();
        const { promise: atWork, resolve } = Promise.withResolvers();
        const call = refusal(peer.client.call("hang", { ticket }, { signal: abort.signal, onprogress: resolve }));
        await atWork;
        await cutAll();
        const server = await direct.text("ended", { ticket });
        abort.abort("enough");
        await call;
        const after = await peer.text("echo", { text: "still there" });
        await peer.client.close();
        return { server, after };
    },

    // What happens while nothing is connected is told when the client has come back.
    async cut_updates(direct) {
        const peer = await Peer.at(settings.proxied);
        const [before, during] = ["before", "during"].map((word) => `${settings.name}-${word}`);
        await peer.client.watch({ uris: [`text://${before}`, `text://${during}`] });
        await rewrite(peer, before, "1");
        const first = await peer.nextChange(UPDATED);
        await cutAll();
        await rewrite(direct, during, "2");
        const second = await peer.nextChange(UPDATED);
        await peer.client.close();
        return [first, second].map((change) => change.params.uri.split("-").at(-1));
    },
};

async function counted(peer) {
    const seen = [];
    const text = await peer.text("count", { to: 1000 }, { onprogress: ({ progress }) => seen.push(progress) });
    return { arrived: peer.arrived, seen, text };
}

async function rewrite(peer, name, value) {
    await peer.client.call("rewrite", { name, value, uri: `text://${name}` });
}

async function refusal(call) {
    return await call.then((result) => ({ unexpected: result }), wire);
}

function wire(error) {
    return { name: error?.name ?? String(error), code: error?.code ?? null, message: error?.message ?? String(error) };
}

function inTime(work) {
    const { promise, reject } = Promise.withResolvers();
    const timer = setTimeout(() => reject(new Error("too late")), DEADLINE);
    return Promise.race([work, promise]).finally(() => clearTimeout(timer));
}

const report = {};
const peer = await inTime(Peer.at(settings.url));
for (const name of settings.scenarios) {
    peer.questions.length = peer.arrived.length = 0;
    try {
        report[name] = { saw: structuredClone(await inTime(scenarios[name](peer))) };
    } catch (error) {
        report[name] = { failed: error?.stack ?? String(error) };
    }
}
await inTime(peer.client.close());
process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit(0));
