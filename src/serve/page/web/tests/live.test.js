// The page while servers and runs come and go: SEARCHMILL_BIN is the program, SEARCHMILL_DIR a folder with a pipeline
// whose node `gate` waits for the file `go`.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch } from "./browser.js";

const [bin, cwd] = [process.env.SEARCHMILL_BIN, process.env.SEARCHMILL_DIR];
const started = new Set();
let browser;

before(async () => {
  browser = await launch();
});

after(async () => {
  for (const child of started) child.kill("SIGKILL");
  await browser?.close();
});

function start(args) {
  const child = spawn(bin, args, { cwd, stdio: ["ignore", "pipe", "inherit"] });
  started.add(child);
  child.on("exit", () => started.delete(child));
  return child;
}

/** Starts a server; returns it with its address. */
async function serve(listen) {
  const server = start(["ui", "--listen", listen]);
  const [line] = await once(server.stdout, "data");
  return { server, base: /http:\S+/.exec(String(line))[0] };
}

/** Asks until the answer fits. */
async function wait(url, fits) {
  for (let time = 0; time < 400; time += 1) {
    const answer = await fetch(url).then((found) => found.json(), () => null);
    if (answer && fits(answer)) return answer;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`${url} did not become what is expected`);
}

test("a server that is killed is missed, and found again where it was", async () => {
  const first = await serve("127.0.0.1:0");
  const run = start(["run", "pipeline.yaml"]);
  const ended = once(run, "exit");
  const { running } = await wait(`${first.base}/api/pipelines`, (found) => found.running.length === 1);
  const id = running[0].id;
  const page = await browser.newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(`${first.base}/r/${id}`);
  await page.locator(".log li", { hasText: "gate" }).first().waitFor();
  await page.locator("h1 .state", { hasText: "running" }).waitFor();

  first.server.kill("SIGKILL");
  await once(first.server, "exit");
  await page.getByText("The connection to the server is lost").waitFor();
  // What was seen stays.
  assert.ok((await page.locator(".log li").count()) > 1);
  const before = await page.locator(".log li").count();

  const second = await serve(first.base.slice("http://".length));
  assert.equal(second.base, first.base);
  await page.getByText("The connection to the server is lost").waitFor({ state: "detached" });
  writeFileSync(`${cwd}/go`, "");
  await page.locator("h1 .state", { hasText: "done" }).waitFor();
  // It goes on where it stopped: nothing twice.
  const lines = await page.locator(".log li").allInnerTexts();
  const begun = lines.filter((line) => /node started gate/.test(line));
  assert.equal(begun.length, 1, lines.join("\n"));
  assert.ok(lines.length > before);
  assert.equal((await ended)[0], 0);

  // A conversation of 300 messages, whole.
  const begin = performance.now();
  await page.goto(`${first.base}/r/${id}/n/long/row?at=0`);
  await page.locator("article.turn").nth(299).waitFor();
  assert.ok(performance.now() - begin < 10_000);
  assert.equal(await page.locator("article.turn").count(), 300);
  await page.keyboard.press("n");
  await page.keyboard.press("n");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "m1");
  await page.close();
  second.server.kill();
});
