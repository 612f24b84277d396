// What the benches of pages share: Chromium (SEARCHMILL_BROWSER, if it is elsewhere), and a line for each task.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { launch } from "../src/serve/page/web/tests/browser.js";

process.env.SEARCHMILL_BROWSER ??= "/usr/bin/chromium";
export const browser = await launch();

/** A page of an own window, with nothing in its cache. */
export async function fresh() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  return page;
}

/** Starts `searchmill ui` in a folder, and returns how to end it as soon as the server names its address. */
export async function serve(binary, cwd, address) {
  const server = spawn(binary, ["ui", "--listen", address, "--no-open"], { cwd });
  const ended = once(server, "exit");
  process.once("exit", () => server.kill());
  // It names its address on stdout or stderr as soon as it listens, and an error if the port is taken.
  const said = await Promise.race([once(server.stdout, "data"), once(server.stderr, "data"), ended]);
  const text = String(said[0]);
  if (!text.includes(`http://${address}`) || text.includes("error")) throw new Error(`no server: ${text}`);
  return async () => {
    server.kill("SIGINT");
    await ended;
  };
}

/** Prints the median and the least of the times of each task in milliseconds, and ends the browser. */
export async function report(found) {
  for (const [task, values] of Object.entries(found)) {
    values.sort((a, b) => a - b);
    const median = values[Math.floor(values.length / 2)];
    console.log(JSON.stringify({ task, ms: Math.round(median), least: Math.round(values[0]), reps: values.length }));
  }
  await browser.close();
}
