// Times a run of 10,000 questions (evidence rollouts) in turn with nobody looking, with a reader of its events
// (the server's part of the cost), and with the page open in Chromium: medians in milliseconds.
// Every run starts from a copy of the same store, since the disk is slower when more was written before.
//
//   scripts/setup-browser
//   node benches/page_open.mjs target/release/searchmill [REPETITIONS]
import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fresh, report, serve } from "./browser.mjs";

const [name, times = "7"] = process.argv.slice(2);
const binary = resolve(name);
const address = "127.0.0.1:8134";
const cwd = mkdtempSync(join(tmpdir(), "page-open-"));
const store = join(cwd, ".searchmill");
writeFileSync(join(cwd, "large.yaml"), `name: large
nodes:
  world:    {op: generate-world, with: {documents: 2000, questions: 10000}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 60, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts:
    op: rollout
    from: {questions: world.questions, search: bm25}
    with: {policy: evidence, samples: 2, max_turns: 6, search: {top_k: 3}}
`);

/** Runs the nodes that TARGET needs and waits for the end. */
async function run(target) {
  const child = spawn(binary, ["run", "large.yaml", target, "-q"], { cwd, stdio: "ignore" });
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`the run of ${target} ended with ${code}`);
}

/** Follows the events of the newest run from when it is there, and counts their bytes. */
async function follow(before) {
  let bytes = 0;
  for (;;) {
    const started = readdirSync(join(store, "runs")).filter((run) => !before.includes(run));
    if (started.length === 1) {
      const answer = await fetch(`http://${address}/api/runs/${started[0]}/events`);
      for await (const part of answer.body) bytes += part.length;
      return bytes;
    }
    await sleep(50);
  }
}

await run("bm25");
cpSync(store, join(cwd, "warm"), { recursive: true });
const found = { closed: [], events: [], page: [] };
let bytes = 0;
for (let time = 0; time < Number(times); time += 1) {
  // The order turns, so that what grows over the hour weighs on all alike.
  const order = time % 2 ? ["page", "events", "closed"] : ["closed", "events", "page"];
  for (const state of order) {
    rmSync(store, { recursive: true });
    cpSync(join(cwd, "warm"), store, { recursive: true });
    const end = await serve(binary, cwd, address);
    const before = readdirSync(join(store, "runs"));
    let page;
    if (state === "page") {
      page = await fresh();
      await page.goto(`http://${address}/p/large`);
      await sleep(2000);
    }
    const events = state === "events" ? follow(before) : undefined;
    const start = performance.now();
    await run("rollouts");
    found[state].push(performance.now() - start);
    if (events) bytes = await events;
    await page?.context().close();
    await end();
  }
}
rmSync(cwd, { recursive: true });
console.log(JSON.stringify({ event_bytes: bytes }));
await report(found);
