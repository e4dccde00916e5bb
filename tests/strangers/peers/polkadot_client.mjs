// A client for JSON-RPC subscriptions of another world: `polkadot_client.mjs URL`. It says what it saw.
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/package.json`);
const { WsProvider } = require("@polkadot/rpc-provider");

const [url] = process.argv.slice(2);
const provider = new WsProvider(url);
await provider.isReady;

// All events of a stream that ends by itself.
async function all(method, params) {
    const events = [];
    await new Promise((done, failed) => {
        const take = (error, event) => {
            if (error) return failed(error);
            events.push(event);
            if (event.type === "complete" || event.type === "error") done();
        };
        provider.subscribe(method, method, params, take).catch(failed);
    });
    return events;
}

// A stream that goes on for ever, until some events have come.
async function some(method, params, number) {
    let seen = 0;
    let enough;
    const heard = new Promise((done) => (enough = done));
    const id = await provider.subscribe(method, method, params, () => ++seen === number && enough());
    await heard;
    return await provider.unsubscribe(method, `${method}_unsub`, id);
}

const saw = {
    events: await all("act.pieces", []),
    counted: (await all("act.count", [100])).length,
    unsubscribed: await some("act.count", [1e12], 10),
    hash: await provider.send("act.hash", []),
    refused: await provider.send("act.nope", []).catch((error) => error.code),
};
console.log(JSON.stringify(saw));
await provider.disconnect();
